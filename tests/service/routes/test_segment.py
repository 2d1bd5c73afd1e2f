"""/segment: overlapping objects taken apart, their masks and the overlay of them."""

from base64 import b64decode, b64encode
from collections.abc import Iterator
from io import BytesIO

import httpx
import numpy as np
import pytest
from PIL import Image

from service.http.png import PALETTE, brightness, overlay, to_png
from service.routes.segment import masks
from tests.support.live_service import live_service, settings_for
from tests.support.paths import ROOT
from tests.support.small_pictures import to_npy
from tests.support.tiny_bundle import CLASSES, SIDE, write_bundle

OVERLAP = ROOT / "docs" / "overlap.png"  # a three and an eight
PNG = {"Accept": "image/png"}
NPY = {"Content-Type": "application/x-npy"}
MOST_PICTURES = 12


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny" / "1")
    write_bundle(root / "crowd" / "1", pose_shape=(2, 2), objects_per_image=3)
    write_bundle(root / "single" / "1", classes=("0",))
    write_bundle(root / "color" / "1", channels=3)
    write_bundle(root / "blind" / "1", decoder=False)
    settings = settings_for(root, default_model="tiny", max_batch=4, max_reconstructions=MOST_PICTURES)
    with live_service(settings) as client:
        yield client


@pytest.fixture(scope="module")
def shipped() -> Iterator[httpx.Client]:
    with live_service(settings_for(ROOT / "models", optimize=False)) as client:
        yield client


def picture(seed: int = 0, channels: int = 1) -> bytes:
    rng = np.random.default_rng(seed)
    return to_png(rng.random((SIDE, SIDE, channels), np.float32))


def segmented(client: httpx.Client, query: str = "", content: bytes | None = None) -> dict:
    answer = client.post(f"/segment{query}", content=content or picture())
    assert answer.status_code == 200, answer.text
    [result] = answer.json()["results"]
    return result


def levels(file: str | bytes, mode: str | None = None) -> np.ndarray:
    opened = Image.open(BytesIO(b64decode(file) if isinstance(file, str) else file))
    assert opened.format == "PNG"
    return np.asarray(opened.convert(mode) if mode else opened).astype(int)


def reconstructions(result: dict) -> np.ndarray:
    """How bright each object is, [K, H, W], 0-255."""
    return np.stack([levels(entry["reconstruction"], "L") for entry in result["objects"]])


def assert_the_same_picture(one: str, other: str) -> None:
    # One level: the decoder rounds differently in batches of other sizes.
    assert np.abs(levels(one) - levels(other)).max() <= 1


def test_the_objects_are_the_most_probable_classes_in_their_order(client):
    [seen] = client.post("/classify?top_k=2", content=picture()).json()["results"]
    objects = segmented(client, "?k=2")["objects"]
    described = [{name: entry[name] for name in ("label", "probability", "pose")} for entry in objects]
    assert described == seen["classes"]


def test_each_object_is_confident_from_the_probability_asked_for_on(client):
    sure, unsure = segmented(client, "?k=2")["objects"]
    assert (sure["confident"], unsure["confident"]) == (None, None)
    between = (sure["probability"] + unsure["probability"]) / 2
    result = segmented(client, f"?k=2&min_probability={between}")
    assert result["blank"] is False
    assert [entry["confident"] for entry in result["objects"]] == [True, False]


def test_of_a_blank_picture_no_object_is_confident(client):
    result = segmented(client, "?min_probability=0", to_png(np.zeros((SIDE, SIDE, 1), np.float32)))
    assert result["blank"] is True
    assert {entry["confident"] for entry in result["objects"]} == {False}


@pytest.mark.parametrize("k", [1, 2, 3])
def test_k_objects_are_given(client, k):
    objects = segmented(client, f"?k={k}")["objects"]
    assert len({entry["label"] for entry in objects}) == k
    probabilities = [entry["probability"] for entry in objects]
    assert probabilities == sorted(probabilities, reverse=True)


@pytest.mark.parametrize(("model", "objects"), [("tiny", 2), ("crowd", 3), ("single", 1)])
def test_without_k_there_are_as_many_objects_as_the_model_expects_but_two_if_it_knows_two(
    client, model, objects
):
    assert len(segmented(client, f"?model={model}")["objects"]) == objects


def test_one_object_is_what_classify_reconstructs(client):
    [seen] = client.post("/classify?reconstruction=true", content=picture()).json()["results"]
    [entry] = segmented(client, "?k=1")["objects"]
    assert (entry["label"], entry["reconstruction"]) == (seen["label"], seen["reconstruction"])


@pytest.mark.parametrize("model", ["tiny", "crowd", "color"])
def test_every_object_is_what_reconstruct_makes_of_its_label_alone(client, model):
    content = picture(channels=3 if model == "color" else 1)
    for entry in segmented(client, f"?model={model}&k=3", content)["objects"]:
        body = {"image": b64encode(content).decode(), "label": entry["label"], "model": model}
        [alone] = client.post("/reconstruct", json=body).json()["reconstructions"]
        assert_the_same_picture(entry["reconstruction"], alone["image"])
        assert entry["pose"] == alone["pose"]


@pytest.mark.parametrize("model", ["tiny", "color"])
def test_a_mask_is_where_the_object_is_at_least_half_as_bright_as_at_its_brightest(client, model):
    result = segmented(client, f"?model={model}&k=3")
    for entry, gray in zip(result["objects"], reconstructions(result), strict=True):
        np.testing.assert_array_equal(levels(entry["mask"]), np.where(2 * gray >= gray.max(), 255, 0))
        assert {0, 255} == set(np.unique(levels(entry["mask"])))


def test_a_pixel_may_belong_to_several_objects(client):
    first, second = (levels(entry["mask"]) for entry in segmented(client)["objects"])
    assert ((first == 255) & (second == 255)).any()


def test_nothing_belongs_to_an_object_without_a_picture():
    assert not masks(np.zeros((1, SIDE, SIDE), np.float32)).any()


@pytest.mark.parametrize("model", ["tiny", "color"])
def test_the_overlay_shows_the_first_object_red_and_the_second_green(client, model):
    result = segmented(client, f"?model={model}&k=2")
    assert [entry["colour"] for entry in result["objects"]] == ["#ff0000", "#00ff00"]
    red, green = reconstructions(result)
    expected = np.stack([red, green, np.zeros_like(red)], axis=-1)
    np.testing.assert_array_equal(levels(result["overlay"]), expected)


def test_where_red_and_green_objects_overlap_the_overlay_is_yellow():
    strokes = np.zeros((2, 3, 3), np.float32)
    strokes[0, 1, :] = strokes[1, :, 1] = 1
    shown = overlay(strokes)
    assert shown[1, 0].tolist() == [1, 0, 0]
    assert shown[0, 1].tolist() == [0, 1, 0]
    assert shown[1, 1].tolist() == [1, 1, 0]
    assert shown[0, 0].tolist() == [0, 0, 0]


def test_an_overlay_of_many_objects_has_the_palettes_colors_and_never_more_than_full_brightness():
    one_pixel_each = np.eye(len(PALETTE) + 1, dtype=np.float32)[:, None, :]  # [K, 1, K]
    shown = [
        "#" + bytes(round(255 * c) for c in pixel).hex() for pixel in overlay(one_pixel_each)[0].tolist()
    ]
    assert shown == [*PALETTE, PALETTE[0]]
    assert len(set(PALETTE)) == len(PALETTE)
    everywhere = np.ones((len(PALETTE), 1, 1), np.float32)
    assert overlay(everywhere).tolist() == [[[1, 1, 1]]]


def test_a_colored_object_is_as_bright_as_its_png_is_in_gray():
    pixels = np.random.default_rng(0).random((2, SIDE, SIDE, 3), np.float32)
    for shown, gray in zip(pixels, brightness(pixels), strict=True):
        np.testing.assert_array_equal(np.rint(gray * 255), levels(to_png(shown), "L"))


def test_as_a_png_the_overlays_of_all_images_stand_side_by_side(client):
    files = [("images", (f"{seed}.png", picture(seed))) for seed in range(3)]
    results = client.post("/segment", files=files).json()["results"]
    answer = client.post("/segment", files=files, headers=PNG)
    assert (answer.headers["content-type"], answer.headers["vary"]) == ("image/png", "Accept")
    expected = np.concatenate([levels(result["overlay"]) for result in results], axis=1)
    np.testing.assert_array_equal(levels(answer.content), expected)


def test_several_files_are_answered_in_order_with_their_names(client):
    files = [("images", (f"{seed}.png", picture(seed))) for seed in range(4)]
    results = client.post("/segment?k=3", files=files).json()["results"]  # three batches of four
    assert [result["filename"] for result in results] == [f"{seed}.png" for seed in range(4)]
    for seed, result in enumerate(results):
        alone = segmented(client, "?k=3", picture(seed))
        assert [entry["label"] for entry in alone["objects"]] == [e["label"] for e in result["objects"]]
        assert_the_same_picture(alone["overlay"], result["overlay"])


def test_an_array_gets_the_answer_of_the_picture_it_holds(client):
    answer = client.post("/segment", content=to_npy(levels(picture())[None].astype(np.uint8)), headers=NPY)
    assert answer.json() == client.post("/segment", content=picture()).json()


def test_the_answer_says_which_model_made_it_and_what_shape_its_poses_have(client):
    answer = client.post("/segment?model=crowd&version=1", content=picture()).json()
    assert (answer["model"], answer["version"], answer["pose_shape"]) == ("crowd", 1, [2, 2])


@pytest.mark.parametrize("k", [0, len(CLASSES) + 1, "two"])
def test_a_k_that_the_model_has_no_classes_for_is_an_invalid_field(client, k):
    answer = client.post(f"/segment?k={k}", content=picture())
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-field")
    assert "k" in answer.json()["detail"]
    assert str(k) in answer.json()["detail"]


def test_a_model_without_a_decoder_takes_nothing_apart(client):
    answer = client.post("/segment?model=blind", content=picture())
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/no-decoder")


def test_more_objects_than_a_request_may_have_decoded_are_refused(client):
    files = [("images", picture(seed)) for seed in range(MOST_PICTURES // 3 + 1)]
    assert client.post("/segment?k=2", files=files).status_code == 200
    answer = client.post("/segment?k=3", files=files)
    assert (answer.status_code, answer.json()["type"]) == (413, "/problems/too-many-pictures")
    assert "5 images x 3 objects" in answer.json()["detail"]


def test_an_unknown_parameter_is_named(client):
    answer = client.post("/segment?top_k=2", content=picture())
    assert answer.status_code == 422
    assert "top_k" in answer.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        {"json": {"image": ""}},
        {"files": {"picture": b"1"}},
        {"content": b"--a--\r\n", "headers": {"Content-Type": "multipart/form-data; boundary=a"}},
    ],
    ids=["json", "another field", "no part"],
)
@pytest.mark.parametrize("route", ["/classify", "/segment"])
def test_a_body_that_the_route_does_not_take_is_refused_in_the_routes_own_name(client, route, body):
    answer = client.post(route, **body)
    assert answer.status_code in {415, 422}
    assert f"{route} takes " in answer.json()["detail"]


def test_the_openapi_document_describes_the_route(client):
    route = client.get("/openapi.json").json()["paths"]["/segment"]["post"]
    assert {"multipart/form-data", "image/*", "application/x-npy"} <= set(route["requestBody"]["content"])
    assert set(route["responses"]["200"]["content"]) == {"application/json", "image/png"}
    assert route["parameters"][0]["name"] == "k"


def test_the_shipped_model_shows_overlapping_digits_in_red_and_green(shipped):
    result = segmented(shipped, content=OVERLAP.read_bytes())
    red, green = reconstructions(result)
    shown = levels(result["overlay"])
    np.testing.assert_array_equal(shown, np.stack([red, green, np.zeros_like(red)], axis=-1))
    assert min(red.max(), green.max()) > 127


def test_the_digits_of_the_readmes_overlap_are_told_apart(shipped):
    objects = segmented(shipped, "?model=capsnet-multimnist", OVERLAP.read_bytes())["objects"]
    assert [entry["label"] for entry in objects] == ["3", "8"]
    assert min(entry["probability"] for entry in objects) > 0.5


def test_the_shipped_models_objects_are_what_it_reconstructs_of_each_label(shipped):
    content = OVERLAP.read_bytes()
    result = segmented(shipped, "?k=10", content)
    assert sorted(entry["label"] for entry in result["objects"]) == list("0123456789")
    for entry in result["objects"]:
        body = {"image": b64encode(content).decode(), "label": entry["label"]}
        [alone] = shipped.post("/reconstruct", json=body).json()["reconstructions"]
        assert_the_same_picture(entry["reconstruction"], alone["image"])
