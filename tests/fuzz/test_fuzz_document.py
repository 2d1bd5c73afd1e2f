"""The OpenAPI document is true of whatever is sent and answered."""

from collections.abc import Iterator
from typing import Any

import hypothesis.core
import pytest
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from service.app import create_app
from service.settings import Settings
from tests.fuzz.fuzzed_service import ADMIN_KEY, LIMIT_S, MODELS, FuzzedService
from tests.fuzz.picture_files import damaged_pictures, pictures
from tests.fuzz.sizes import examples

# Half of the binary strings are pictures: noise alone would never get beyond the decoder.
schemathesis.openapi.format("binary", st.binary() | pictures() | damaged_pictures())
schemathesis.serializer.alias("application/x-npy", "application/octet-stream")

DOCUMENT = create_app(Settings(api_keys=None)).openapi()
CONFIG = schemathesis.Config(seed=hypothesis.core.global_force_seed or 0)
schema = schemathesis.openapi.from_dict(DOCUMENT, config=CONFIG)


@schema.hook
def flatmap_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> st.SearchStrategy[Any]:
    """Paths often name what there is; what is there for all is unloaded by none."""
    if not path_parameters:
        return st.just(path_parameters)
    known = ["spare"] if context.operation.path.startswith("/v2/repository") else MODELS
    names = {"name": st.sampled_from(known), "version": st.just("1")}
    told = st.fixed_dictionaries({name: names[name] for name in path_parameters if name in names})
    return told | st.just(path_parameters)


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


@schema.parametrize()
@examples(share=4, fuzz=160)
def test_every_answer_is_as_documented(
    case: schemathesis.Case, service: FuzzedService, session: requests.Session
) -> None:
    url = str(service.process.client.base_url).rstrip("/")
    if case.path == "/metrics":
        url = service.process.metrics_url
    answer = case.call(base_url=url, session=session, headers={"X-API-Key": ADMIN_KEY}, timeout=LIMIT_S)
    content = b"" if answer.request.method == "HEAD" else answer.content
    headers = {name: values[0] for name, values in answer.headers.items()}
    service.judge(answer.status_code, headers, content)
    # A schema cannot say which bytes are a picture, or that what a name names must be there.
    case.validate_response(answer, excluded_checks=[positive_data_acceptance])


def test_a_rule_for_a_version_that_is_there_is_accepted(
    service: FuzzedService, session: requests.Session
) -> None:
    url = str(service.process.client.base_url).rstrip("/") + "/v2/repository/models/spare/traffic"
    key = {"X-API-Key": ADMIN_KEY}
    for method, body, status in (("PUT", {"pinned": 1}, 200), ("DELETE", None, 204)):
        answer = session.request(method, url, json=body, headers=key, timeout=LIMIT_S)
        service.judge(answer.status_code, answer.headers, answer.content)
        assert answer.status_code == status
