"""/reconstruct: perturbations, sweeps, and the grid of them."""

import json
from base64 import b64decode, b64encode, encodebytes
from collections.abc import Iterator
from io import BytesIO
from itertools import pairwise

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from service.http.accept import rates_png_higher
from service.routes.perturbations import sweep_columns, sweep_deltas
from service.routes.schemas import Sweep
from tests.support.live_service import live_service, settings_for
from tests.support.small_pictures import random_png
from tests.support.tiny_bundle import SIDE, write_bundle

POSE = {"pose": [0.1, -0.2, 0.3, 0.05], "label": "1"}
PNG = {"Accept": "image/png"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny" / "1")
    write_bundle(root / "blind" / "1", decoder=False)
    settings = settings_for(root, default_model="tiny", max_batch=8, max_reconstructions=100)
    with live_service(settings) as client:
        yield client


def pixels(file: bytes) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(file)))


def test_unperturbed_there_is_exactly_one_entry_the_plain_one(client):
    answer = client.post("/reconstruct", json=POSE).json()
    (entry,) = answer["reconstructions"]
    assert entry["perturbations"] == []
    np.testing.assert_array_equal(np.float32(entry["pose"]), np.float32(POSE["pose"]))
    assert (answer["model"], answer["version"], answer["label"]) == ("tiny", 1, "1")


def test_an_image_is_reconstructed_from_its_most_probable_class(client):
    (seen,) = client.post("/classify?reconstruction=true", content=random_png()).json()["results"]
    answer = client.post("/reconstruct", json={"image": b64encode(random_png()).decode()}).json()
    assert answer["label"] == seen["label"]
    assert answer["reconstructions"][0]["pose"] == seen["classes"][0]["pose"]
    assert answer["reconstructions"][0]["image"] == seen["reconstruction"]


def test_a_label_chooses_the_class_that_is_decoded(client):
    (seen,) = client.post("/classify", content=random_png()).json()["results"]
    last = seen["classes"][-1]
    body = {"image": b64encode(random_png()).decode(), "label": last["label"]}
    answer = client.post("/reconstruct", json=body).json()
    assert (answer["label"], answer["reconstructions"][0]["pose"]) == (last["label"], last["pose"])


def test_a_form_gets_the_answer_of_the_same_json(client):
    sweep = {"dimensions": [1], "start": 0.0, "stop": 0.1, "step": 0.1}
    body = {"image": b64encode(random_png()).decode(), "label": "2", "version": 1, "sweep": sweep}
    form = {"label": "2", "version": "1", "sweep": json.dumps(sweep)}
    answers = [
        client.post("/reconstruct", json=body),
        client.post("/reconstruct", files={"image": random_png()}, data=form),
    ]
    assert answers[0].json() == answers[1].json()
    assert len(answers[0].json()["reconstructions"]) == 2


def test_base64_may_have_line_breaks(client):
    bodies = [{"image": encode(random_png()).decode()} for encode in (b64encode, encodebytes)]
    assert "\n" in bodies[1]["image"]
    answers = [client.post("/reconstruct", json=body) for body in bodies]
    assert answers[0].status_code == 200
    assert answers[0].json() == answers[1].json()


def test_model_and_version_may_stand_in_the_query(client):
    assert client.post("/reconstruct?model=tiny&version=1", json=POSE).json()["model"] == "tiny"
    assert client.post("/reconstruct?model=blind", json=POSE).json()["type"] == "/problems/no-decoder"
    assert client.post("/reconstruct?version=7", json=POSE).json()["type"] == "/problems/unknown-model"


def test_both_kinds_of_answer_vary_by_accept_and_every_line_of_it_is_read(client):
    plain = client.post("/reconstruct", json=POSE)
    lines = [("Accept", "application/json;q=0.5"), ("Accept", "image/png")]
    png = client.post("/reconstruct", json=POSE, headers=lines)
    assert (plain.headers["vary"], png.headers["vary"]) == ("Accept", "Accept")
    assert png.headers["content-type"] == "image/png"


def test_perturbations_are_applied_together(client):
    perturbations = [{"dimension": 0, "delta": 0.2}, {"dimension": 3, "delta": -0.1}]
    (entry,) = client.post("/reconstruct", json={**POSE, "perturbations": perturbations}).json()[
        "reconstructions"
    ]
    assert entry["perturbations"] == perturbations
    assert entry["pose"] == pytest.approx([0.3, -0.2, 0.3, -0.05])
    moved = client.post("/reconstruct", json={**POSE, "pose": entry["pose"]}).json()["reconstructions"][0]
    assert entry["image"] == moved["image"]


def test_a_sweep_goes_through_the_deltas_of_one_dimension_after_the_other(client):
    sweep = {"dimensions": [2, 0], "start": -0.25, "stop": 0.25, "step": 0.25}
    entries = client.post("/reconstruct", json={**POSE, "sweep": sweep}).json()["reconstructions"]
    done = [(p["dimension"], p["delta"]) for entry in entries for p in entry["perturbations"]]
    assert done == [(2, -0.25), (2, 0.0), (2, 0.25), (0, -0.25), (0, 0.0), (0, 0.25)]


def test_the_default_sweep_is_eleven_pictures_of_every_dimension(client):
    entries = client.post("/reconstruct", json={**POSE, "sweep": {}}).json()["reconstructions"]
    dimensions = [entry["perturbations"][0]["dimension"] for entry in entries]
    assert dimensions == [dimension for dimension in range(4) for _ in range(11)]


def test_the_grids_center_column_is_the_plain_reconstruction(client):
    plain = pixels(client.post("/reconstruct", json=POSE, headers=PNG).content)
    grid = pixels(client.post("/reconstruct", json={**POSE, "sweep": {}}, headers=PNG).content)
    assert grid.shape == (4 * SIDE, 11 * SIDE)
    for row in range(4):
        center = grid[row * SIDE : (row + 1) * SIDE, 5 * SIDE : 6 * SIDE]
        np.testing.assert_array_equal(center, plain)


def test_the_grid_holds_the_pictures_of_the_json_answer_in_rows(client):
    body = {**POSE, "sweep": {"dimensions": [1, 3], "step": 0.25}}
    grid = pixels(client.post("/reconstruct", json=body, headers=PNG).content)
    entries = client.post("/reconstruct", json=body).json()["reconstructions"]
    assert grid.shape == (2 * SIDE, 3 * SIDE)
    for index, entry in enumerate(entries):
        row, column = divmod(index, 3)
        tile = grid[row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE]
        np.testing.assert_array_equal(tile, pixels(b64decode(entry["image"])))


def test_a_model_without_a_decoder_says_so(client):
    answers = [
        client.post("/reconstruct", json={**POSE, "model": "blind"}),
        client.post("/classify?model=blind&reconstruction=true", content=random_png()),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/no-decoder")


def test_the_papers_sweep_has_eleven_clean_deltas_and_zero_in_the_middle():
    past_the_stop = Sweep(start=0, stop=1e6, step=333333.33333333337)
    assert sweep_deltas(past_the_stop)[-1] == 1e6  # all that a delta may be
    deltas = sweep_deltas(Sweep(start=-0.25, stop=0.25, step=0.05))
    assert deltas == [-0.25, -0.2, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2, 0.25]
    assert str(deltas[5]) == "0.0"


@given(steps=st.integers(0, 200), step=st.floats(1e-3, 10), below=st.integers(0, 200))
def test_a_sweep_of_whole_steps_includes_its_stop(steps, step, below):
    sweep = Sweep(start=-below * step, stop=(steps - below) * step, step=step)
    deltas = sweep_deltas(sweep)
    assert len(deltas) == sweep_columns(sweep) == steps + 1
    assert deltas[0] == pytest.approx(sweep.start, abs=1e-11)
    assert deltas[-1] == pytest.approx(sweep.stop, abs=1e-6)
    assert all(before < after for before, after in pairwise(deltas))


@pytest.mark.parametrize(
    ("accept", "png"),
    [
        ("image/png", True),
        ("application/json, image/png;q=0.5", False),
        ("image/png, application/json;q=0.5", True),
        ("image/png, */*;q=0.1", True),
        ("image/*", True),
        ("image/*;q=0.5, application/json", False),
        ("application/json;q=0.5, image/*", True),
        ("image/*, image/png;q=0", False),
        ("image/png;q=0", False),
        ("image/*, application/json", False),
        ("application/*, image/*;q=0.9", False),
        ("image/png, application/*", True),
        ("image/avif,image/webp,image/*,*/*;q=0.8", True),
        ("image/png, */*", True),
        ("application/json, image/png", False),
        ("*/*", False),
        ("", False),
        ("image/png;q=nonsense", False),
        ("image/png;q=1e400", False),
        ("image/png;q=2", False),
        ("image/png;q=0.999, application/json;q=0.5", True),
    ],
)
def test_a_png_is_given_to_those_who_prefer_it(accept, png):
    assert rates_png_higher(accept) is png
