"""What the repository promises about the bundles it ships."""

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import httpx
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from PIL import Image

from benchmarks.inference.photographs import printed
from export.contract.manifest import read_checked, read_manifest
from export.optimize.choice import MAX_ERROR
from tests.support.live_service import live_service, settings_for
from tests.support.paths import ROOT
from tests.support.small_pictures import to_npy, to_png
from training.config import CapsNetConfig
from training.config.renamed import with_current_names
from training.data.datasets import load_split
from training.data.readers.smallnorb import CLASS_NAMES
from training.data.run_images import evaluation_batches
from training.data.synthetic.letters import LETTERS
from training.data.synthetic.toys.conditions import Conditions
from training.data.synthetic.toys.make import make
from training.evaluate.metrics import Errors
from training.models.build import build
from training.runs.from_bundle import run_config

MODELS = sorted(path for path in (ROOT / "models").iterdir() if path.is_dir())
PER_REQUEST = 250


def newest(model: Path) -> Path:
    return max(model.iterdir(), key=lambda version: int(version.name))


@pytest.fixture(params=MODELS, ids=lambda model: model.name)
def any_bundle(request) -> Path:
    return newest(request.param)


@pytest.fixture(scope="module")
def bundle() -> Path:
    return newest(ROOT / "models" / "capsnet-mnist")


@pytest.fixture(scope="module")
def pairs_bundle() -> Path:
    return newest(ROOT / "models" / "capsnet-multimnist")


@pytest.fixture(scope="module")
def toys_bundle() -> Path:
    return newest(ROOT / "models" / "matrix-capsnet-toys")


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """Of a service with the bundles' own graphs."""
    with live_service(settings_for(ROOT / "models", optimize=False)) as client:
        yield client


@pytest.fixture(scope="module")
def faster() -> Iterator[httpx.Client]:
    """Of one with the graphs derived from them, one model at a time, for which a first request may wait."""
    with live_service(
        settings_for(ROOT / "models", default_model="capsnet-mnist", deadline_ms=240_000)
    ) as client:
        yield client


def classify(client: httpx.Client, pictures, model: str = "capsnet-mnist") -> list[dict]:
    files = [("images", (f"{i}.png", to_png(picture))) for i, picture in enumerate(pictures)]
    answer = client.post(f"/classify?model={model}", files=files)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def post_array(client: httpx.Client, route: str, pixels) -> list[dict]:
    """What the service makes of float32 images [N, H, W, C], 0 to 1, posted as they are."""
    answer = client.post(route, content=to_npy(pixels), headers={"Content-Type": "application/x-npy"})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_only_the_newest_version_is_in_the_tree(model):
    assert len(list(model.iterdir())) == 1


def test_its_files_are_what_its_manifest_says(any_bundle):
    manifest = read_manifest(any_bundle)
    assert manifest.model == any_bundle.parent.name
    for file in (*manifest.graphs.values(), manifest.samples):
        read_checked(any_bundle, file)


def test_its_graphs_give_what_its_samples_say(any_bundle):
    manifest = read_manifest(any_bundle)
    with np.load(any_bundle / manifest.samples.file, allow_pickle=False) as samples:
        for graph in manifest.graphs.values():
            session = ort.InferenceSession(any_bundle / graph.file, providers=["CPUExecutionProvider"])
            outputs = [tensor.name for tensor in graph.outputs]
            found = session.run(outputs, {tensor.name: samples[tensor.name] for tensor in graph.inputs})
            answers = {name: values for name, values in zip(outputs, found, strict=True) if name in samples}
            assert answers
            for name, values in answers.items():
                np.testing.assert_allclose(values, samples[name], atol=1e-4)


def test_its_graphs_have_no_control_flow_and_hold_their_weights(any_bundle):
    """But for the explain graph, whose weights are the encoder's."""
    for role, graph in read_manifest(any_bundle).graphs.items():
        model = onnx.load(any_bundle / graph.file, load_external_data=False)
        assert not {node.op_type for node in model.graph.node} & {"Loop", "If", "Scan"}
        far = [tensor for tensor in model.graph.initializer if tensor.data_location]
        files = {entry.value for tensor in far for entry in tensor.external_data if entry.key == "location"}
        assert files == ({"encoder.onnx"} if role == "explain" else set())
        onnx.checker.check_model(any_bundle / graph.file, full_check=True)


def test_its_training_started_from_committed_code(any_bundle):
    assert re.fullmatch(r"[0-9a-f]{40}", read_manifest(any_bundle).source_commit)


def test_its_network_is_the_one_that_was_trained(any_bundle):
    """A CapsNet's primary coupling alone is not: the graph has it in its weights."""
    manifest = read_manifest(any_bundle)
    trained = run_config(manifest).model
    if isinstance(trained, CapsNetConfig):
        trained = replace(trained, primary_coupling=False)
    assert type(trained)(**with_current_names(manifest.parameters)) == trained


@pytest.mark.parametrize("model", ["capsnet-mnist", "capsnet-digits"])
def test_it_is_the_papers_network(model):
    manifest = read_manifest(newest(ROOT / "models" / model))
    of_capsules = 160 if manifest.parameters["capsule_bias"] else 0  # biases, which the official code adds
    assert manifest.parameter_count == 8_215_568 + of_capsules
    assert manifest.parameters["routing_iterations"] == 3
    assert manifest.pose_shape == (16,)


def test_the_readme_states_the_manifests_error(any_bundle):
    error = error_percents(read_manifest(any_bundle))["test_error"]
    name = any_bundle.parent.name
    [row] = re.findall(rf"^\| `{name}`:.*", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert f"| **{error:.2f} %** of " in row
    assert row.endswith(f"| `capsnet-export evaluate models/{name}` |")
    [row] = re.findall(rf"^\| `{name}`:.*", (ROOT / "docs" / "results.md").read_text(), re.MULTILINE)
    assert f"| {error:.2f} % of " in row


def wrong_answers(client, model, root, count) -> int:
    """Of the first test images, posted."""
    test = load_split("mnist", "test", root)
    assert len(test.labels) == 10_000
    wrong = 0
    for start in range(0, count, PER_REQUEST):
        results = classify(client, test.images[start : start + PER_REQUEST, ..., 0], model)
        found = np.array([int(result["label"]) for result in results])
        wrong += int((found != test.labels[start : start + PER_REQUEST]).sum())
    return wrong


@pytest.mark.mnist
@pytest.mark.parametrize("model", ["capsnet-mnist", "capsnet-digits"])
def test_of_1000_test_images_posted_at_most_10_are_wrong(model, client, mnist_root):
    assert wrong_answers(client, model, mnist_root, 1000) <= 10


@pytest.mark.long
@pytest.mark.mnist
@pytest.mark.parametrize("model", ["capsnet-mnist", "capsnet-digits"])
def test_of_all_test_images_posted_at_most_50_are_wrong_as_the_manifest_states(model, faster, mnist_root):
    [metric] = read_manifest(newest(ROOT / "models" / model)).metrics
    wrong = wrong_answers(faster, model, mnist_root, 10_000)
    assert wrong <= 50
    assert wrong / 100 == metric.value


@pytest.mark.mnist
def test_an_mnist_image_posted_as_png_gets_the_encoders_answer_to_the_last_digit(bundle, client, mnist_root):
    for entry, probability, pose in answers_and_outputs(bundle, client, mnist_root):
        assert np.float32(entry["probability"]) == probability
        assert np.array_equal(np.array(entry["pose"], np.float32), pose)


def test_faster_graphs_change_an_answer_by_less_than_what_is_allowed(bundle, faster, mnist_root):
    for entry, probability, pose in answers_and_outputs(bundle, faster, mnist_root):
        assert abs(entry["probability"] - probability) <= MAX_ERROR["capsnet"]
        assert np.abs(np.array(entry["pose"], np.float32) - pose).max() <= MAX_ERROR["capsnet"]


def answers_and_outputs(bundle, client, mnist_root):
    """For ten test images and each class: the service's entry, the encoder's probability and its pose."""
    encoder = ort.InferenceSession(bundle / "encoder.onnx", providers=["CPUExecutionProvider"])
    for picture in load_split("mnist", "test", mnist_root).images[:10, ..., 0]:
        [result] = classify(client, [picture])
        pixels = picture[None, :, :, None].astype(np.float32) / np.float32(255)
        probabilities, poses = encoder.run(None, {"pixels": pixels})
        for entry in result["classes"]:
            j = int(entry["label"])
            yield entry, probabilities[0, j], poses[0, j]


def test_its_answers_are_confident_from_a_threshold_on_that_was_not_measured_on_the_test_set(any_bundle):
    confidence = read_manifest(any_bundle).confidence
    assert confidence.right_confident >= 0.99 * confidence.right
    assert "held out of training" in confidence.data
    assert "test set" not in confidence.data


@pytest.mark.mnist
def test_digits_that_are_dark_on_light_get_the_answers_of_those_that_are_not(client, mnist_root):
    digits = load_split("mnist", "test", mnist_root).images[:200, ..., 0]
    assert classify(client, 255 - digits) == classify(client, digits)


@pytest.mark.parametrize("model", ["capsnet-mnist", "capsnet-digits"])
def test_of_a_blank_page_and_of_noise_no_answer_is_confident(model, client):
    page = np.full((300, 400), 250, np.uint8)
    noise = np.random.default_rng(0).integers(0, 256, (2, 28, 28), dtype=np.uint8)
    answered = classify(client, [page, *noise], model)
    assert [result["confident"] for result in answered] == [False, False, False]
    assert [result["blank"] for result in answered] == [True, False, False]


def test_of_nine_in_ten_printed_letters_the_default_model_is_not_sure(client):
    """In a font that it has not learned from."""
    rng = np.random.default_rng(3)
    letters = [np.asarray(printed(LETTERS[n % len(LETTERS)], rng)) for n in range(100)]
    files = [("images", (f"{n}.png", to_png(letter))) for n, letter in enumerate(letters)]
    answer = client.post("/classify", files=files).json()
    assert answer["model"] == "capsnet-digits"
    assert sum(not result["confident"] for result in answer["results"]) >= 90


def test_two_overlapping_digits_get_two_labels(pairs_bundle, client):
    with np.load(pairs_bundle / "samples.npz", allow_pickle=False) as samples:
        results = post_array(client, "/classify?model=capsnet-multimnist", samples["pixels"])
    for result in results:
        assert len(set(result["labels"])) == 2
        assert result["labels"] == [entry["label"] for entry in result["classes"][:2]]


def test_two_overlapping_digits_are_taken_apart_into_two(pairs_bundle, client):
    with np.load(pairs_bundle / "samples.npz", allow_pickle=False) as samples:
        results = post_array(client, "/segment?model=capsnet-multimnist", samples["pixels"][:1])
    assert [len(result["objects"]) for result in results] == [2]


def errors_of_pairs(manifest, client, root, count) -> Errors:
    """Of the first fixed test pairs, posted."""
    images = wrong = missed = 0
    for pixels, truth in islice(pairs_of(run_config(manifest), root), count // PER_REQUEST):
        for result, expected in zip(
            post_array(client, "/classify?model=capsnet-multimnist&top_k=2", pixels), truth, strict=True
        ):
            absent = expected - {int(label) for label in result["labels"]}
            images, wrong, missed = images + 1, wrong + bool(absent), missed + len(absent)
    assert images == count
    return Errors(images, wrong, 2 * images, missed)


@pytest.mark.mnist
def test_of_1000_test_pairs_posted_at_most_100_are_wrong(pairs_bundle, client, mnist_root):
    manifest = read_manifest(pairs_bundle)
    assert manifest.objects_per_image == 2
    assert errors_of_pairs(manifest, client, mnist_root, 1000).errors <= 100


@pytest.mark.long
@pytest.mark.mnist
def test_of_all_test_pairs_posted_at_most_1200_are_wrong_as_the_manifest_states(
    pairs_bundle, faster, mnist_root
):
    manifest = read_manifest(pairs_bundle)
    found = errors_of_pairs(manifest, faster, mnist_root, 10_000)
    assert found.errors <= 1200
    assert error_percents(manifest) == {
        "test_error": found.error_percent,
        "object_error": found.object_error_percent,
    }


def test_the_network_of_toys_has_68k_parameters_beside_its_decoders(toys_bundle):
    model = run_config(read_manifest(toys_bundle)).model
    encoder = build(replace(model, decoder_hidden=()))
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 68_754


def test_the_manifest_of_toys_states_an_error_on_all_toys_that_were_not_trained_on(toys_bundle):
    manifest = read_manifest(toys_bundle)
    assert (manifest.views, manifest.pose_shape) == (2, (4, 4))
    [metric] = manifest.metrics
    assert metric.data.startswith("toys test set, 24300 images")
    assert f"| **{metric.value:.2f} %** of 24,300 stereo pairs |" in (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def rendered_toys(tmp_path_factory) -> Path:
    """Data of four viewpoints of each of the 25 toys that were not trained on: 100 pairs."""
    root = tmp_path_factory.mktemp("data")
    make(root, Conditions(train=(4,), elevations=(2, 6), azimuths=(3, 12), lightings=(2,)), processes=1)
    return root


def test_of_100_pairs_of_toys_not_trained_on_at_most_15_are_wrong(toys_bundle, rendered_toys):
    [shown] = evaluation_batches(run_config(read_manifest(toys_bundle)), rendered_toys).fixed(PER_REQUEST)
    probabilities, _ = encoded(toys_bundle, shown)
    wrong = probabilities.argmax(axis=1) != shown.targets.argmax(dim=1).numpy()
    assert len(wrong) == 100
    assert wrong.sum() <= 15


def test_toys_posted_as_pictures_get_the_answers_of_the_encoder_to_its_data(
    toys_bundle, client, rendered_toys
):
    pairs = load_split("toys", "test", rendered_toys).images
    [shown] = evaluation_batches(run_config(read_manifest(toys_bundle)), rendered_toys).fixed(PER_REQUEST)
    probabilities, _ = encoded(toys_bundle, shown)
    views = [to_png(pair[..., view]) for pair in pairs for view in (0, 1)]
    files = [("images", (f"{number}.png", view)) for number, view in enumerate(views)]
    results = client.post("/classify?model=matrix-capsnet-toys", files=files).json()["results"]
    for result, expected in zip(results, probabilities, strict=True):
        found = {entry["label"]: entry["probability"] for entry in result["classes"]}
        np.testing.assert_allclose([found[name] for name in CLASS_NAMES], expected, atol=1e-4)


def encoded(bundle, shown):
    """Probabilities and poses that a bundle's own encoder gives for a batch of its data."""
    encoder = ort.InferenceSession(bundle / "encoder.onnx", providers=["CPUExecutionProvider"])
    pixels = shown.pixels.permute(0, 2, 3, 1).contiguous().numpy()
    return encoder.run(["probabilities", "poses"], {"pixels": pixels})


def test_the_sample_pair_of_the_readme_is_recognized_and_reconstructed_in_both_views(client):
    views = [(f"{side}.png", (ROOT / "docs" / f"{side}.png").read_bytes()) for side in ("left", "right")]
    model = "?model=matrix-capsnet-toys"
    answer = client.post("/classify" + model, files=[("images", view) for view in views]).json()
    [result] = answer["results"]
    assert (result["label"], answer["pose_shape"]) == ("truck", [4, 4])
    assert result["classes"][0]["probability"] > 0.5
    png = {"Accept": "image/png"}
    drawn = client.post("/reconstruct" + model, files=[("image", view) for view in views], headers=png)
    assert Image.open(io.BytesIO(drawn.content)).size == (64, 32)


def error_percents(manifest) -> dict[str, float]:
    return {metric.name: metric.value for metric in manifest.metrics}


def pairs_of(config, root):
    """The fixed test pairs, up to 250 at a time: pixels [N, 36, 36, 1], and both classes of each."""
    for batch in evaluation_batches(config, root).fixed(PER_REQUEST):
        classes = [set(target.nonzero().flatten().tolist()) for target in batch.targets]
        yield batch.pixels.permute(0, 2, 3, 1).contiguous().numpy(), classes


def test_a_sweep_of_all_16_dimensions_is_a_grid_around_the_plain_reconstruction(client):
    files = {"image": ("seven.jpg", (ROOT / "docs" / "seven.jpg").read_bytes())}
    png = {"Accept": "image/png"}
    plain = client.post("/reconstruct", files=files, headers=png)
    sweep = '{"start": -0.25, "stop": 0.25, "step": 0.05}'
    swept = client.post("/reconstruct", files=files, data={"sweep": sweep}, headers=png)
    grid = np.asarray(Image.open(io.BytesIO(swept.content)))
    assert grid.shape == (16 * 28, 11 * 28)
    expected = np.asarray(Image.open(io.BytesIO(plain.content)))
    for row in range(16):
        assert np.array_equal(grid[28 * row : 28 * row + 28, 5 * 28 : 6 * 28], expected)


def test_the_sample_pictures_of_the_readme_are_recognized(client):
    for name, label in (("seven.jpg", "7"), ("three.png", "3")):
        answer = client.post("/classify", files={"images": (name, (ROOT / "docs" / name).read_bytes())})
        [result] = answer.json()["results"]
        assert result["label"] == label
        assert result["classes"][0]["probability"] > 0.5
