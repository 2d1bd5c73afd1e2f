"""Whatever is uploaded as a picture, an array or a form, it is answered soundly or told what is wrong."""

import io

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from PIL import Image

from export.contract.pictures import MIN_SIDE_PIXELS
from tests.fuzz.fuzzed_service import LIMITS, FuzzedService, assert_sound
from tests.fuzz.picture_files import damaged_pictures, pictures
from tests.fuzz.sizes import examples
from tests.fuzz.upload_bodies import Body, array_files, forms, reconstructions

FILES = pictures() | damaged_pictures()
ODD_QUERIES = ("?%ff=%00", "?model=" + "x" * 5000, "?top_k=1&top_k=1", "?version=0&version=", "?&&&")
QUERIES = {
    "/classify": (
        "",
        "",
        "?model=color",
        "?model=stereo",
        "?top_k=2&preprocess=off",
        "?reconstruction=true",
        "?model_input=true",
        "?top_k=99",
    ),
    "/segment": (
        "",
        "?k=1",
        "?k=3&preprocess=off",
        "?k=4",
        "?model=tiny&version=1",
        "?model=color",
        "?model=stereo",
    ),
    "/explain": ("", "?label=1", "?label=9", "?model=color", "?preprocess=off", "?model=tiny&version=1"),
    "/reconstruct": ("", "", "?preprocess=off", "?model=tiny&version=1", "?version=2", "?model=stereo"),
}


def targets(*routes: str) -> st.SearchStrategy[str]:
    """One of the routes, with a query that mostly is one of its own."""
    queries = [route + query for route in routes for query in QUERIES[route]]
    return st.sampled_from(queries * 2 + [routes[0] + query for query in ODD_QUERIES])


ACCEPTS = st.sampled_from(["*/*", "image/png", "image/png;q=1e400, application/json;q=0.1", "\xff"])
KINDS = st.sampled_from(
    [*("image/png", "application/octet-stream", "", "text/plain") * 2, "application/json", "\xff/\xfe"]
)

# Hypothesis's word on what it shows of a failure, which must not stand in place of the failure.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")


@examples(share=120, fuzz=3500)
@given(target=targets("/classify", "/segment", "/explain"), accept=ACCEPTS, kind=KINDS, file=FILES)
def test_a_picture_is_answered_soundly_or_told_what_is_wrong(
    service: FuzzedService, target: str, accept: str, kind: str, file: bytes
) -> None:
    send(service, target, (kind, file), accept)


@examples(share=30, fuzz=1500)
@given(query=st.sampled_from(["", "?model=color"]), file=pictures())
def test_a_whole_picture_is_classified_unless_it_is_too_small_or_too_large(
    service: FuzzedService, query: str, file: bytes
) -> None:
    answer = send(service, "/classify" + query, ("image/png", file))
    with Image.open(io.BytesIO(file)) as picture:
        if len(file) > LIMITS["max_body_bytes"] or picture.width * picture.height > LIMITS["max_pixels"]:
            assert answer == 413
        elif min(picture.size) < MIN_SIDE_PIXELS or not np.isfinite(picture).all():
            assert answer == 422
        else:
            assert answer == 200


@examples(share=60, fuzz=2500)
@given(
    target=targets("/classify", "/segment", "/explain"),
    form=forms("images", FILES | array_files()),
    accept=ACCEPTS,
)
def test_a_form_of_pictures_is_answered_soundly_or_told_what_is_wrong(
    service: FuzzedService, target: str, form: Body, accept: str
) -> None:
    send(service, target, form, accept)


@examples(share=80, fuzz=1500)
@given(target=targets("/classify", "/segment", "/explain"), content=array_files())
def test_an_array_is_answered_soundly_or_told_what_is_wrong(
    service: FuzzedService, target: str, content: bytes
) -> None:
    send(service, target, ("application/x-npy", content))


@examples(share=60, fuzz=2000)
@given(target=targets("/reconstruct"), content=reconstructions(FILES), accept=ACCEPTS)
def test_a_reconstruction_is_answered_soundly_or_told_what_is_wrong(
    service: FuzzedService, target: str, content: bytes, accept: str
) -> None:
    send(service, target, ("application/json", content), accept)


@examples(share=30, fuzz=1500)
@given(form=forms("image", FILES), accept=ACCEPTS)
def test_a_form_of_a_reconstruction_is_answered_soundly_or_told_what_is_wrong(
    service: FuzzedService, form: Body, accept: str
) -> None:
    send(service, "/reconstruct", form, accept)


def send(service: FuzzedService, target: str, body: Body, accept: str = "*/*") -> int:
    """The status of an answer; one of 200 is sound."""
    kind, content = body
    answer = service.send(target, content, {"Content-Type": kind, "Accept": accept})
    event(str(answer.status_code))
    if answer.status_code == 200:
        assert_sound(answer)
    return answer.status_code
