"""Models of two views and poses of 4x4, from files to the answers of every command and route."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from base64 import b64decode, b64encode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from capsnet import CapsnetError, Client, Failed, Pair, Retry, Scored, Sweep
from capsnet.answers import read_png
from export.contract.manifest import Preprocessing
from export.contract.preprocess import to_input, views_to_input
from service.score import main as score_main
from tests.support.live_service import live_service, settings_for
from tests.support.small_pictures import random_levels, random_png, to_npy, to_png
from tests.support.tables import read_csv
from tests.support.tiny_bundle import CLASSES, PAIRS, SIDE, run_model, write_bundle
from training.config import DataConfig
from training.data.batches import make_batches
from training.data.images import Images

# H rows, W columns

POSE_SIZE = 16
PNG = {"Accept": "image/png"}
NPY = {"Content-Type": "application/x-npy"}
MOST_FILES = 12


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "stereo" / "1", seed=1, channels=2, pose_shape=(4, 4))
    write_bundle(root / "mono" / "1", seed=2)
    return root


@pytest.fixture(scope="module")
def client(models: Path) -> Iterator[httpx.Client]:
    settings = settings_for(models, default_model="stereo", max_images_per_request=MOST_FILES)
    with live_service(settings) as client:
        yield client


@pytest.fixture(scope="module")
def caller(client: httpx.Client) -> Iterator[Client]:
    with Client(str(client.base_url), retry=Retry(attempts=1)) as caller:
        yield caller


def pair(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A left and a right view of the model's size."""
    return random_levels(2 * seed), random_levels(2 * seed + 1)


def pair_files(*seeds: int) -> list[tuple[str, tuple[str, bytes]]]:
    """Parts of a form: the views of each pair one after the other."""
    names = ("left", "right")
    return [
        ("images", (f"{seed}_{name}.png", to_png(view)))
        for seed in seeds
        for name, view in zip(names, pair(seed), strict=True)
    ]


def encoded(models: Path, *seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """What the encoder alone gives for pairs: probabilities [N, J] and poses [N, J, 16]."""
    pixels = np.stack([np.stack(pair(seed), axis=2) for seed in seeds]) / np.float32(255)
    content = (models / "stereo" / "1" / "encoder.onnx").read_bytes()
    return run_model(content, pixels=pixels)


def probabilities(result: dict[str, object]) -> list[np.float32]:
    """Of every class, in the model's order."""
    by_label = {one["label"]: np.float32(one["probability"]) for one in result["classes"]}
    return [by_label[name] for name in CLASSES]


def assert_problem(answer: httpx.Response, slug: str, *words: str) -> None:
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (422, f"/problems/{slug}"), problem
    for word in words:
        assert word in problem["detail"]


# pictures to input


def test_a_stereo_pair_becomes_the_pixels_that_a_network_is_measured_on():
    facts = Preprocessing(height=32, width=32, channels=2, placement="centre-crop", crop_share=32 / 48)
    data = DataConfig(name="toys", resize_pixels=48, crop_pixels=32, max_shift_pixels=0)
    views = [random_levels(seed, 96, 96) for seed in (0, 1)]
    images = Images(torch.from_numpy(np.stack(views)[None]), torch.tensor([0]))
    (batch,) = make_batches(data, 5, images).fixed(1)
    measured = batch.pixels[0].permute(1, 2, 0).numpy()  # [H, W, 2]
    served = views_to_input([Image.fromarray(view) for view in views], facts)
    np.testing.assert_array_equal(served, measured)


def test_each_view_goes_through_the_rule_as_if_it_were_alone():
    left, right = (Image.fromarray(random_levels(seed, 60, 40)) for seed in (0, 1))
    both = views_to_input([left, right], PAIRS)
    alone = PAIRS.model_copy(update={"channels": 1})
    np.testing.assert_array_equal(both[..., :1], to_input(left, alone))
    np.testing.assert_array_equal(both[..., 1:], to_input(right, alone))


# /classify


def test_a_pair_gets_what_the_encoder_gives_to_the_last_digit(models, client):
    answer = client.post("/classify", files=pair_files(0)).json()
    (result,) = answer["results"]
    expected, poses = encoded(models, 0)
    assert answer["pose_shape"] == [4, 4]
    np.testing.assert_array_equal(probabilities(result), expected[0])
    for one in result["classes"]:
        np.testing.assert_array_equal(np.float32(one["pose"]), poses[0, CLASSES.index(one["label"])])


def test_the_left_view_comes_first(client):
    left, right = pair_files(0)
    answers = [client.post("/classify", files=files).json() for files in ([left, right], [right, left])]
    first, second = (answer["results"][0] for answer in answers)
    assert not np.allclose(probabilities(first), probabilities(second), atol=0.01)


def test_consecutive_files_are_pairs_in_order_with_both_names(models, client):
    results = client.post("/classify", files=pair_files(3, 1, 2)).json()["results"]
    names = [result["filename"] for result in results]
    assert names == ["3_left.png, 3_right.png", "1_left.png, 1_right.png", "2_left.png, 2_right.png"]
    for result, expected in zip(results, encoded(models, 3, 1, 2)[0], strict=True):
        np.testing.assert_allclose(probabilities(result), expected, atol=1e-6)


@pytest.mark.parametrize("count", [1, 3])
def test_an_odd_number_of_files_is_refused(client, count):
    files = pair_files(0, 1)[:count]
    assert_problem(
        client.post("/classify", files=files), "invalid-field", "two views", "pairs", f"got {count}"
    )


def test_one_raw_picture_is_refused_and_told_how_two_are_sent(client):
    answer = client.post("/classify", content=random_png(0))
    assert_problem(answer, "invalid-field", "two views", "-F images=@left.png -F images=@right.png", "got 1")


def test_arrays_hold_the_views_as_channels(client):
    levels = np.stack([np.stack(pair(seed), axis=2) for seed in (0, 1)])
    from_array = client.post("/classify", content=to_npy(levels), headers=NPY).json()["results"]
    from_files = client.post("/classify", files=pair_files(0, 1)).json()["results"]
    assert [one | {"filename": None} for one in from_files] == from_array


def test_an_array_of_one_view_is_refused(client):
    answer = client.post("/classify", content=to_npy(random_levels(0)[None]), headers=NPY)
    assert_problem(answer, "wrong-array", f"expected [N, {SIDE}, {SIDE}, 2]")


def test_views_of_different_sizes_are_no_pair(client):
    second = [
        ("images", ("a.png", to_png(random_levels(0, 40, 30)))),
        ("images", ("b.png", to_png(random_levels(1, 30, 40)))),
    ]
    answer = client.post("/classify", files=pair_files(0) + second)
    assert_problem(answer, "no-pair", "image 4 of 4 ('b.png')", "right view is 40x30", "30x40")


def test_views_are_held_upright_before_they_are_compared(client):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by a quarter
    upright, turned = random_levels(0, 60, 40), np.rot90(random_levels(1, 60, 40))
    files = [to_png(upright), to_png(np.ascontiguousarray(turned), exif=exif)]
    plain = [to_png(upright), to_png(random_levels(1, 60, 40))]
    first, second = (
        client.post("/classify", files=[("images", one) for one in both]) for both in (files, plain)
    )
    assert first.json()["results"][0]["classes"] == second.json()["results"][0]["classes"]


def test_a_pair_counts_as_two_images(client):
    seeds = range(MOST_FILES // 2)
    assert client.post("/classify", files=pair_files(*seeds)).status_code == 200
    one_more = np.zeros((MOST_FILES // 2 + 1, SIDE, SIDE, 2), np.uint8)
    for answer in (
        client.post("/classify", files=pair_files(*seeds, 99)),
        client.post("/classify", content=to_npy(one_more), headers=NPY),
    ):
        assert (answer.status_code, answer.json()["type"]) == (413, "/problems/too-many-pictures")
        assert str(MOST_FILES) in answer.json()["detail"]


# /reconstruct and /segment


def in_json(seed: int) -> list[str]:
    return [b64encode(to_png(view)).decode() for view in pair(seed)]


def reconstructed(client: httpx.Client, **body: object) -> list[dict[str, object]]:
    return client.post("/reconstruct", json=body).raise_for_status().json()["reconstructions"]


def levels_of(file: str) -> np.ndarray:
    """The pixels [H, W] of a gray PNG file in base64."""
    return read_png(b64decode(file))[:, :, 0]


def test_the_views_of_a_reconstruction_stand_side_by_side(models, client):
    pose = 20 * np.random.default_rng(0).normal(size=POSE_SIZE).astype(np.float32)  # matrices have no bound
    (entry,) = reconstructed(client, pose=pose.tolist(), label="1")
    poses, mask = np.zeros((1, len(CLASSES), POSE_SIZE), np.float32), np.eye(3, dtype=np.float32)[1:2]
    poses[0, 1] = pose
    decoder = (models / "stereo" / "1" / "decoder.onnx").read_bytes()
    (expected,) = run_model(decoder, poses=poses, mask=mask)  # [1, H, W, 2]
    side_by_side = np.hstack([expected[0, :, :, 0], expected[0, :, :, 1]])
    np.testing.assert_array_equal(levels_of(entry["image"]), np.rint(side_by_side * 255))
    np.testing.assert_array_equal(np.float32(entry["pose"]), pose)


def test_a_pair_is_reconstructed_as_classify_does_it(client):
    query = {"reconstruction": True}
    (seen,) = client.post("/classify", params=query, files=pair_files(0)).json()["results"]
    in_a_form = [("image", part) for _, part in pair_files(0)]
    for answer in (
        client.post("/reconstruct", json={"image": in_json(0)}),
        client.post("/reconstruct", files=in_a_form),
    ):
        (entry,) = answer.json()["reconstructions"]
        assert answer.json()["pose_shape"] == [4, 4]
        assert (answer.json()["label"], entry["image"]) == (seen["label"], seen["reconstruction"])
        assert entry["pose"] == seen["classes"][0]["pose"]


def test_every_element_of_a_pose_matrix_is_a_dimension(client):
    sweep = {"start": -3, "stop": 3, "step": 1.5}
    swept = reconstructed(client, image=in_json(0), sweep=sweep)
    assert [entry["perturbations"][0]["dimension"] for entry in swept] == sorted(5 * list(range(POSE_SIZE)))
    (plain,) = reconstructed(client, image=in_json(0))
    for entry in swept:
        moved = np.subtract(entry["pose"], plain["pose"])
        (change,) = entry["perturbations"]
        expected = np.eye(POSE_SIZE)[change["dimension"]] * change["delta"]
        np.testing.assert_allclose(moved, expected, atol=1e-5)


def test_the_grid_holds_both_views_of_every_picture(client):
    body = {"image": in_json(0), "sweep": {"dimensions": [15, 0], "start": -1, "stop": 1, "step": 1}}
    grid = read_png(client.post("/reconstruct", json=body, headers=PNG).content)
    assert grid.shape == (2 * SIDE, 3 * 2 * SIDE, 1)
    tiles = grid[:, :, 0].reshape(2, SIDE, 3, 2 * SIDE).swapaxes(1, 2).reshape(-1, SIDE, 2 * SIDE)
    for tile, entry in zip(tiles, reconstructed(client, **body), strict=True):
        np.testing.assert_array_equal(tile, levels_of(entry["image"]))


def test_a_dimension_beyond_the_matrix_is_refused(client):
    body = {"pose": [0] * POSE_SIZE, "label": "1", "perturbations": [{"dimension": 16, "delta": 1}]}
    assert_problem(client.post("/reconstruct", json=body), "invalid-field", "0 to 15", "got 16")


@pytest.mark.parametrize(
    ("model", "views", "expected"),
    [("stereo", 1, "a pair of views"), ("mono", 2, "one picture")],
)
def test_a_model_is_given_as_many_views_as_it_takes(client, model, views, expected):
    files = in_json(0)[:views]
    in_a_form = [("image", part) for _, part in pair_files(0)[:views]]
    for answer in (
        client.post(f"/reconstruct?model={model}", json={"image": files[0] if views == 1 else files}),
        client.post(f"/reconstruct?model={model}", files=in_a_form),
    ):
        assert_problem(answer, "invalid-field", f"{model} takes {expected}", f"got {views}")


@pytest.mark.parametrize("image", [[], ["a"], ["a", "b", "c"], ["a", 1], 7, {"left": "a"}], ids=str)
def test_an_image_in_json_is_one_file_or_two(client, image):
    answer = client.post("/reconstruct", json={"image": image})
    assert_problem(answer, "invalid-field", "image: must be the base64", "a list of two such texts", "got")


def test_a_nested_pose_is_told_to_be_flat(client):
    answer = client.post("/reconstruct", json={"pose": [[0.0] * 4] * 4, "label": "0"})
    assert_problem(
        answer, "invalid-field", "a flat list of numbers, a matrix row by row; got list of 4 at [0]"
    )


def test_the_objects_of_a_pair_are_segmented_in_both_views(client):
    (result,) = client.post("/segment?k=2", files=pair_files(0)).json()["results"]
    assert result["filename"] == "0_left.png, 0_right.png"
    assert read_png(b64decode(result["overlay"])).shape == (SIDE, 2 * SIDE, 3)
    for one in result["objects"]:
        (alone,) = reconstructed(client, pose=one["pose"], label=one["label"])
        assert one["reconstruction"] == alone["image"]
        assert levels_of(one["mask"]).shape == (SIDE, 2 * SIDE)


def test_the_protocols_tensors_have_the_views_as_channels(models, client, caller):
    described = client.get("/v2/models/stereo").json()
    assert described["inputs"][0]["shape"] == [-1, SIDE, SIDE, 2]
    seen = caller.infer(np.stack([np.stack(pair(0), axis=2)]) / np.float32(255))
    for found, expected in zip(seen, encoded(models, 0), strict=True):
        np.testing.assert_array_equal(found, expected)
    pictures = caller.decode(seen.poses, np.eye(3, dtype=np.float32)[:1])
    assert pictures.shape == (1, SIDE, SIDE, 2)


# the client


def test_a_client_sends_pairs_of_files_or_arrays_of_both_views(caller, tmp_path):
    paths = [tmp_path / "left.png", tmp_path / "right.png"]
    for path, view in zip(paths, pair(0), strict=True):
        path.write_bytes(to_png(view))
    files = Pair(*paths)
    both = np.stack(pair(0), axis=2)
    named, array = (caller.classify(given).results[0] for given in (files, both[None]))
    assert (named.filename, array.filename) == ("left.png, right.png", None)
    assert [one.probability for one in named.classes] == [one.probability for one in array.classes]
    assert named.classes[0].pose.shape == (4, 4)
    (drawn,) = {caller.reconstruct_grid(given).tobytes() for given in (files, both)}
    assert len(drawn) == SIDE * 2 * SIDE


def test_a_clients_sweep_has_poses_of_the_models_shape(caller):
    swept = caller.reconstruct(
        pose=np.eye(4), label="2", sweep=Sweep(dimensions=[5], start=0, stop=1, step=1)
    )
    last = swept.reconstructions[-1]
    np.testing.assert_array_equal(last.pose, np.diag([1, 2, 1, 1]))
    assert last.picture.shape == (SIDE, 2 * SIDE, 1)


def test_a_pair_that_is_none_fails_alone_in_a_clients_stream(caller):
    good, odd = (
        Pair(*map(to_png, pair(0))),
        Pair(to_png(random_levels(0, 40, 40)), to_png(random_levels(1, 50, 50))),
    )
    first, second, third = caller.classify_many([good, odd, good])
    assert [type(first), type(second), type(third)] == [Scored, Failed, Scored]
    assert "50x50" in second.reason


@pytest.mark.parametrize("count", [1, 2])
def test_a_client_says_when_single_pictures_should_be_pairs(caller, count):
    with pytest.raises(CapsnetError, match="stereo takes two views"):
        caller.classify([random_png(0)] * count)


def test_a_client_says_when_pairs_should_be_single_pictures(caller):
    with pytest.raises(CapsnetError, match="mono takes one view of each image; got pairs"):
        caller.classify(Pair(*map(to_png, pair(0))), model="mono")


# capsnet-score


def score(*arguments: object) -> int:
    """The exit status of the command in this process."""
    with pytest.raises(SystemExit) as ended:
        score_main([str(argument) for argument in arguments])
    return ended.value.code


def written_pairs(folder: Path, *seeds: int) -> list[Path]:
    folder.mkdir()
    paths = [folder / name for _, (name, _) in pair_files(*seeds)]
    for path, (_, (_, content)) in zip(paths, pair_files(*seeds), strict=True):
        path.write_bytes(content)
    return paths


def test_a_folder_of_pairs_has_a_row_for_each_over_http_and_in_process(models, client, tmp_path):
    paths = written_pairs(tmp_path / "pairs", *range(5))
    common = (tmp_path / "pairs", "--model", "stereo", "--batch", 2)
    for out, where in (
        ("http.csv", ("--url", client.base_url)),
        ("local.csv", ("--local", "--models", models)),
    ):
        assert score(*common, "--out", tmp_path / out, *where) == 0
        rows = read_csv(tmp_path / out)
        names = [f"{left}, {right}" for left, right in zip(paths[::2], paths[1::2], strict=True)]
        assert [row["path"] for row in rows] == names
        for row, expected in zip(rows, encoded(models, *range(5))[0], strict=True):
            np.testing.assert_allclose([float(row[name]) for name in CLASSES], expected, atol=1e-6)


def test_a_zip_archive_of_an_odd_number_of_pictures_is_an_error_before_a_row_is_written(
    models, tmp_path, capsys
):
    archive = tmp_path / "pairs.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for _, (name, content) in pair_files(0, 1)[:3]:
            file.writestr(name, content)
    assert score(archive, "--local", "--models", models, "--model", "stereo", "--batch", 1) == 2
    captured = capsys.readouterr()
    assert f"{archive} has 3, an odd number" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(("place", "view", "over_http"), [(2, "left", False), (3, "right", True)])
def test_a_pair_with_an_unreadable_view_has_no_row_and_shifts_no_other(
    models, client, tmp_path, over_http, place, view
):
    paths = written_pairs(tmp_path / "pairs", 0, 1, 2)
    paths[place].write_bytes(b"no picture")
    out = tmp_path / "scores.csv"
    where = ("--url", client.base_url) if over_http else ("--local", "--models", models)
    assert score(tmp_path / "pairs", *where, "--model", "stereo", "--out", out) == 1
    for row, expected in zip(read_csv(out), encoded(models, 0, 2)[0], strict=True):
        np.testing.assert_allclose([float(row[name]) for name in CLASSES], expected, atol=1e-6)
    error = json.loads((tmp_path / "scores.csv.errors.jsonl").read_text())
    assert error["path"] == f"{paths[2]}, {paths[3]}"
    assert error["reason"].startswith(f"{view} view: expected a PNG")


# capsnet-score on pairs from several sources


def score_pairs(models: Path, out: Path, *arguments: object) -> int:
    options = ("--local", "--models", models, "--model", "stereo", "--batch", 2, "--out", out)
    return score(*arguments, *options)


def written_tar(archive: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(archive, "w") as members:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            members.addfile(member, BytesIO(content))
    return archive


def views_of(*seeds: int) -> dict[str, bytes]:
    """Files by their names: the views of each pair one after the other."""
    return dict(part for _, part in pair_files(*seeds))


def pair_names(place: Path, *seeds: int) -> list[str]:
    return [f"{place}/{seed}_left.png, {place}/{seed}_right.png" for seed in seeds]


def names_of_rows(out: Path) -> list[str]:
    return [row["path"] for row in read_csv(out)]


def errors_of(out: Path) -> dict[str, str]:
    """The reasons of the pictures without a row, by their names."""
    lines = out.with_name(f"{out.name}.errors.jsonl").read_text().splitlines()
    return {error["path"]: error["reason"] for error in map(json.loads, lines)}


def assert_pairs_are_scored(models: Path, out: Path, *seeds: int) -> None:
    """The rows are those of these pairs, left views taken for left ones."""
    for row, expected in zip(read_csv(out), encoded(models, *seeds)[0], strict=True):
        np.testing.assert_allclose([float(row[name]) for name in CLASSES], expected, atol=1e-6)


def test_two_folders_of_an_odd_number_each_make_no_pair_between_them(models, tmp_path, capsys):
    a, b, out = tmp_path / "a", tmp_path / "b", tmp_path / "scores.csv"
    for folder in (a, b):
        written_pairs(folder, 0, 1)[3].unlink()
    assert score_pairs(models, out, a, b) == 2
    assert f"{a} has 3, an odd number, up to {a}/1_left.png" in capsys.readouterr().err
    assert not out.exists()


def test_a_pair_never_spans_two_subfolders(models, tmp_path, capsys):
    folder, out = tmp_path / "set", tmp_path / "scores.csv"
    folder.mkdir()
    written_pairs(folder / "even", 0)
    for name in ("one", "two"):
        written_pairs(folder / name, 1)[1].unlink()
    assert score_pairs(models, out, folder) == 2
    assert f"{folder}/one has 1, an odd number" in capsys.readouterr().err
    assert not out.exists()


def test_pictures_named_one_by_one_make_no_pair_across_folders(models, tmp_path, capsys):
    paths = [path for name in ("a", "b") for path in written_pairs(tmp_path / name, 0, 1)[:3]]
    assert score_pairs(models, tmp_path / "scores.csv", *paths) == 2
    assert f"{tmp_path}/a has 3, an odd number" in capsys.readouterr().err


def test_the_pairs_of_a_list_are_its_neighbors_wherever_they_lie(models, tmp_path):
    left, right = (tmp_path / name for name in ("left", "right"))
    lines = []
    for seed in range(3):
        for folder, view in zip((left, right), pair(seed), strict=True):
            folder.mkdir(exist_ok=True)
            lines.append(folder / f"{seed}.png")
            lines[-1].write_bytes(to_png(view))
    listed, out = tmp_path / "pairs.txt", tmp_path / "scores.csv"
    listed.write_text("".join(f"{line}\n" for line in lines))
    assert score_pairs(models, out, "--files-from", listed) == 0
    assert names_of_rows(out) == [f"{left}/{seed}.png, {right}/{seed}.png" for seed in range(3)]
    assert_pairs_are_scored(models, out, 0, 1, 2)


def test_a_list_of_an_odd_number_is_an_error_before_a_row_is_written(models, tmp_path, capsys):
    paths = written_pairs(tmp_path / "pairs", 0, 1)
    listed, out = tmp_path / "pairs.txt", tmp_path / "scores.csv"
    listed.write_text("".join(f"{path}\n" for path in paths[:3]))
    assert score_pairs(models, out, "--files-from", listed) == 2
    assert f"the list {listed} has 3, an odd number, up to {paths[2]}" in capsys.readouterr().err
    assert not out.exists()


def test_a_list_of_an_odd_number_from_a_pipe_leaves_its_last_picture_without_a_row(models, tmp_path):
    paths, out = written_pairs(tmp_path / "pairs", 0, 1), tmp_path / "scores.csv"
    options = ["--local", "--models", models, "--model", "stereo", "--out", out, "--files-from", "-"]
    command = [sys.executable, "-m", "service.score", *map(str, options)]
    lines = "".join(f"{path}\n" for path in paths[:3])
    ran = subprocess.run(command, input=lines, text=True, capture_output=True, check=False)
    assert ran.returncode == 1, ran.stderr
    assert names_of_rows(out) == pair_names(tmp_path / "pairs", 0)
    ((name, reason),) = errors_of(out).items()
    assert name == str(paths[2])
    assert reason.startswith("has no other view: the list on stdin has an odd number")


def test_a_tar_archive_of_an_odd_number_leaves_its_last_picture_without_a_row_and_shifts_no_other(
    models, tmp_path
):
    files = views_of(0, 1)
    del files["1_right.png"]
    archive, out = written_tar(tmp_path / "odd.tar", files), tmp_path / "scores.csv"
    written_pairs(tmp_path / "pairs", 2, 3)
    assert score_pairs(models, out, archive, tmp_path / "pairs") == 1
    assert names_of_rows(out) == pair_names(archive, 0) + pair_names(tmp_path / "pairs", 2, 3)
    assert_pairs_are_scored(models, out, 0, 2, 3)
    ((name, reason),) = errors_of(out).items()
    assert name == f"{archive}/1_left.png"
    assert reason.startswith(f"has no other view: {archive} has an odd number")


def test_a_parquet_file_of_an_odd_number_leaves_its_last_picture_without_a_row(models, tmp_path):
    table, out = tmp_path / "pairs.parquet", tmp_path / "scores.csv"
    pq.write_table(pa.table({"image": [*views_of(0, 1).values()][:3]}), table)
    written_pairs(tmp_path / "pairs", 2)
    assert score_pairs(models, out, table, tmp_path / "pairs") == 1
    assert_pairs_are_scored(models, out, 0, 2)
    assert list(errors_of(out)) == [f"{table}#2"]


@pytest.mark.parametrize("members", [2, 3])
def test_a_tar_archive_cut_at_a_header_shifts_no_pair_behind_it(models, tmp_path, members):
    archive, out = written_tar(tmp_path / "cut.tar", views_of(0, 1)), tmp_path / "scores.csv"
    with tarfile.open(archive) as whole:
        os.truncate(archive, whole.getmembers()[members].offset + 100)
    written_pairs(tmp_path / "pairs", 2, 3)
    assert score_pairs(models, out, archive, tmp_path / "pairs") == 1
    assert names_of_rows(out) == pair_names(archive, 0) + pair_names(tmp_path / "pairs", 2, 3)
    assert_pairs_are_scored(models, out, 0, 2, 3)
    *alone, cut = errors_of(out).items()
    assert [name for name, _ in alone] == [f"{archive}/1_left.png"][: members - 2]
    assert cut[0] == str(archive)
    assert cut[1].startswith("the archive cannot be read further")


@pytest.mark.parametrize("name", ["broken.zip", "broken.tar", "broken.parquet"])
def test_what_cannot_be_opened_is_one_error_and_shifts_no_pair(models, tmp_path, name):
    broken, out = tmp_path / name, tmp_path / "scores.csv"
    broken.write_bytes(b"not what its suffix says")
    written_pairs(tmp_path / "pairs", 0, 1)
    assert score_pairs(models, out, broken, tmp_path / "pairs") == 1
    assert_pairs_are_scored(models, out, 0, 1)
    assert list(errors_of(out)) == [str(broken)]


def test_the_folders_in_an_archive_are_kept_apart_as_those_on_disk(models, tmp_path):
    files = {f"{folder}/{seed}.png": random_png(seed) for folder in ("a", "b") for seed in range(3)}
    archive, out = written_tar(tmp_path / "set.tar", files), tmp_path / "scores.csv"
    assert score_pairs(models, out, archive) == 1
    assert names_of_rows(out) == [f"{archive}/{name}/0.png, {archive}/{name}/1.png" for name in ("a", "b")]
    assert list(errors_of(out)) == [f"{archive}/a/2.png", f"{archive}/b/2.png"]


@pytest.mark.parametrize("members", [2, 3])
def test_a_resumed_run_forms_the_pairs_of_an_undisturbed_one(models, tmp_path, members):
    files = dict([*views_of(0, 1).items()][:members])
    archive, pairs = written_tar(tmp_path / "set.tar", files), tmp_path / "pairs"
    whole, out = tmp_path / "whole.csv", tmp_path / "scores.csv"
    written_pairs(pairs, 2, 3)
    status = score_pairs(models, whole, archive, pairs)
    assert score_pairs(models, out, archive) == status == members - 2
    assert score_pairs(models, out, archive, pairs, "--resume") == status
    assert out.read_bytes() == whole.read_bytes()
    if status:
        assert errors_of(out) == errors_of(whole)
