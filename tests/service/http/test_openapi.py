"""The OpenAPI document as people read it at /docs."""

from typing import Any

import pytest

from service.app import create_app
from service.settings import Settings


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(Settings(api_keys=None)).openapi()


def operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for path in document["paths"].values() for operation in path.values()]


def test_every_route_is_in_one_group_and_every_group_says_what_it_is_for(document):
    described = [tag["name"] for tag in document["tags"] if tag["description"]]
    assert {tuple(operation["tags"]) for operation in operations(document)} == {(name,) for name in described}


def test_pictures_come_first_and_probes_are_apart_from_them(document):
    assert document["tags"][0]["name"] == document["paths"]["/classify"]["post"]["tags"][0] == "Pictures"
    assert document["paths"]["/readyz"]["get"]["tags"] == document["paths"]["/metrics"]["get"]["tags"]


def test_parameters_are_of_one_type_each(document):
    for operation in operations(document):
        for parameter in operation.get("parameters", ()):
            assert isinstance(parameter["schema"]["type"], str), parameter["name"]


def test_fields_that_may_be_null_are_shown_as_one_type_and_null(document):
    result = document["components"]["schemas"]["ClassifyResult"]["properties"]
    assert result["reconstruction"]["type"] == ["string", "null"]
    assert result["confident"]["type"] == ["boolean", "null"]
    assert "title" not in result["label"]


def test_a_field_called_title_is_kept(document):
    assert document["components"]["schemas"]["Problem"]["properties"]["title"] == {"type": "string"}


def test_every_operation_that_asks_for_models_says_that_it_may_fail(document):
    for path in document["paths"]:
        if path.startswith("/models"):
            assert {"200", "4XX", "5XX"} <= document["paths"][path]["get"]["responses"].keys(), path
