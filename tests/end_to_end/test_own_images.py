"""The road of one's own images: a folder of pictures, a training run, a bundle, and the service's answers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from export.bundle import parity_pixels
from export.cli import main as export
from export.contract.manifest import read_manifest
from export.parity import IMAGES
from tests.support.live_service import live_service, settings_for
from tests.support.own_iterations import compared_at_own_iterations
from tests.support.small_pictures import saved
from training.cli import main as train
from training.config import load_preset
from training.data.own_pictures import configure
from training.data.run_images import training_batches

CLASSES = ("bars", "disc")
PICTURES = 200  # of each class


def draw(name: str, rng: np.random.Generator) -> Image.Image:
    """A disc or bars, dark on a light ground or the other way round, in a frame of any size."""
    width, height = rng.integers(40, 120, 2).tolist()
    dark, light = (tuple(rng.integers(low, low + 60, 3).tolist()) for low in (20, 170))
    ground, ink = (dark, light) if rng.random() < 0.5 else (light, dark)
    picture = Image.new("RGB", (width, height), ground)
    pen = ImageDraw.Draw(picture)
    if name == "disc":
        radius = min(width, height) * rng.uniform(0.25, 0.4)
        x, y = width / 2 + rng.uniform(-5, 5), height / 2 + rng.uniform(-5, 5)
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=ink)
    else:
        step = width / rng.integers(4, 7)
        for left in np.arange(rng.uniform(0, step), width, step):
            pen.rectangle((left, 0, left + step / 2, height), fill=ink)
    return picture


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run on a folder of 400 drawn pictures."""
    folder, run = (tmp_path_factory.mktemp("own") / name for name in ("pictures", "run"))
    rng = np.random.default_rng(1)
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
        for index in range(PICTURES):
            file_format = ("PNG", "JPEG", "WebP", "BMP", "TIFF", "GIF")[index % 6]
            file = saved(draw(name, rng), file_format)
            (folder / name / f"{index}.{file_format.lower()}").write_bytes(file)
    with pytest.raises(SystemExit) as ended:
        train(["fit", "--images", str(folder), "--epochs", "3", "--out", str(run), "--device", "cpu"])
    assert ended.value.code == 0
    with pytest.raises(SystemExit, match="0"):
        train(["evaluate", str(run), "--device", "cpu"])
    return run


@pytest.fixture(scope="module")
def bundle(run, tmp_path_factory):
    """That run as a user publishes it: models/discs-and-bars/1."""
    out = tmp_path_factory.mktemp("models") / "discs-and-bars"
    with compared_at_own_iterations():
        export(["bundle", str(run), "--out", str(out)])
    return out / "1"


def test_a_fifth_of_the_pictures_is_the_test_set(run):
    result = json.loads((run / "result.json").read_text())
    assert result["images"] == 2 * PICTURES // 5
    assert result["error_percent"] <= 10


def test_evaluate_finds_the_pictures_again(run, capsys):
    before = json.loads((run / "result.json").read_text())
    with pytest.raises(SystemExit):
        train(["evaluate", str(run), "--device", "cpu"])
    assert f"({before['errors']} of {before['images']})" in capsys.readouterr().out


def test_the_bundle_knows_the_classes_and_how_pictures_were_prepared(bundle):
    manifest = read_manifest(bundle)
    assert manifest.class_names == CLASSES
    facts = manifest.preprocessing
    assert (facts.channels, facts.polarity, facts.placement) == (3, "any", "fit")


def test_the_bundle_is_as_good_as_the_run(bundle, run):
    [error] = read_manifest(bundle).metrics
    assert error.value == json.loads((run / "result.json").read_text())["error_percent"]


@pytest.mark.parametrize("inside", ["", "run", "disc/run"])
def test_a_run_among_the_pictures_is_refused_before_it_begins(inside, tmp_path, capsys):
    for name in CLASSES:
        (tmp_path / name).mkdir()
    with pytest.raises(SystemExit, match="2"):
        train(["fit", "--images", str(tmp_path), "--out", str(tmp_path / inside)])
    assert "lies among the pictures in" in capsys.readouterr().err


def test_few_pictures_are_enough_for_the_parity_gate(tmp_path):
    for name in CLASSES:
        (tmp_path / name).mkdir()
        for index in range(5):
            draw(name, np.random.default_rng(index)).save(tmp_path / name / f"{index}.png")
    config = configure(load_preset("images"), tmp_path)
    _, validation = training_batches(config, tmp_path)
    pixels = parity_pixels(validation)
    assert pixels.shape == (IMAGES, 32, 32, 3)
    held_out = np.unique(pixels, axis=0)  # 10 pictures, 8 of them to train on, one of each class held out
    assert len(held_out) == len(CLASSES)
    assert held_out.std() > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "images"], "the preset images is for your own pictures: add --images FOLDER"),
        (["--images", "nowhere"], "nowhere is not a folder"),
        (["--images", "loop"], "loop is not a folder"),
        (["--images", "nowhere", "--resume"], "run is not a run of capsnet-train"),
    ],
)
def test_a_mistake_ends_with_one_line_and_status_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    with pytest.raises(SystemExit) as ended:
        train(["fit", "--out", "run", *arguments])
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.fixture
def moved(run, tmp_path):
    """A copy of the run whose pictures lie elsewhere by now, and where these lie."""
    config = json.loads((run / "config.json").read_text())
    pictures = shutil.copytree(config["data"]["folder"], tmp_path / "elsewhere")
    config["data"]["folder"] = "pictures"
    moved = shutil.copytree(run, tmp_path / "moved")
    (moved / "config.json").write_text(json.dumps(config))
    return moved, pictures


def without_their_pictures(run, out):
    """Commands that need the pictures of a run: program and arguments."""
    yield train, ["evaluate", str(run)]
    yield train, ["fit", "--out", str(run), "--resume"]
    yield export, ["bundle", str(run), "--out", str(out)]


def ending(program, arguments) -> int:
    try:
        program(arguments)
    except SystemExit as ended:
        return ended.code or 0
    return 0


def test_a_command_that_does_not_find_the_pictures_names_the_run_and_says_what_to_do(moved, capsys):
    run, _ = moved
    for program, arguments in without_their_pictures(run, run.parent / "model"):
        assert ending(program, arguments) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert f"{run} was trained on the pictures in pictures, which is no folder here" in line
        assert line.endswith("with --images FOLDER")


@pytest.mark.parametrize("command", [["evaluate"], ["fit", "--resume", "--out"]])
def test_training_commands_take_the_pictures_from_where_they_lie_now(moved, command):
    run, pictures = moved
    assert ending(train, [*command, str(run), "--images", str(pictures)]) == 0


@pytest.mark.usefixtures("own_iterations_only")
def test_a_bundle_is_measured_on_the_pictures_where_they_lie_now_but_does_not_tell_it(moved, capsys):
    run, pictures = moved
    model = run.parent / "model"
    assert ending(export, ["bundle", str(run), "--out", str(model), "--images", str(pictures)]) == 0
    assert "elsewhere" not in (model / "1" / "manifest.json").read_text()
    capsys.readouterr()
    assert ending(export, ["evaluate", str(model)]) == 2
    assert f"{model / '1'} was trained on the pictures in pictures" in capsys.readouterr().err
    assert ending(export, ["evaluate", str(model), "--images", str(pictures)]) == 0
    [metric] = read_manifest(model / "1").metrics
    assert f"test error {metric.value:.2f} %" in capsys.readouterr().out


def test_a_run_on_a_data_set_takes_no_folder(tiny_run, tmp_path, capsys):
    assert ending(train, ["evaluate", str(tiny_run), "--images", str(tmp_path)]) == 2
    assert f"--images is for your own pictures; {tiny_run} is of drawn" in capsys.readouterr().err


@pytest.fixture
def one_less(moved):
    """As `moved`, but a picture has been taken away."""
    _, pictures = moved
    min((pictures / "disc").iterdir()).unlink()
    return moved


def test_a_run_does_not_go_on_with_a_folder_that_has_changed(one_less, capsys):
    run, pictures = one_less
    assert ending(train, ["fit", "--out", str(run), "--resume", "--images", str(pictures)]) == 2
    assert "the folder has changed since the run was started" in capsys.readouterr().err


def test_a_run_on_a_folder_that_has_changed_does_not_start_from_one_on_what_it_held(one_less, capsys):
    run, pictures = one_less
    out = str(run.parent / "new")
    assert ending(train, ["fit", "--images", str(pictures), "--start-from", str(run), "--out", out]) == 2
    assert "does not hold out the images that would be held out here" in capsys.readouterr().err


def test_another_preset_can_be_trained_on_ones_own_pictures(run, tmp_path):
    folder = json.loads((run / "config.json").read_text())["data"]["folder"]
    arguments = ["--preset", "drawn", "--epochs", "1", "--out", str(tmp_path), "--device", "cpu"]
    with pytest.raises(SystemExit) as ended:
        train(["fit", "--images", folder, *arguments])
    assert ended.value.code == 0
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["preset"], config["data"]["class_names"]) == ("drawn", list(CLASSES))


def test_the_service_names_new_pictures_by_the_folders_names(bundle):
    rng = np.random.default_rng(2)
    expected = [CLASSES[index % 2] for index in range(40)]
    files = [("images", (f"{i}.png", saved(draw(name, rng), "PNG"))) for i, name in enumerate(expected)]
    with live_service(settings_for(bundle.parents[1])) as client:
        answer = client.post("/classify", files=files)
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert {entry["label"] for entry in results[0]["classes"]} == set(CLASSES)
    found = [result["label"] for result in results]
    assert np.mean([a == b for a, b in zip(found, expected, strict=True)]) >= 0.9
