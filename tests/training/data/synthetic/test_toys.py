"""The stereo set that the repository makes: its design, its files, that it appears whole or not at all."""

import fcntl
import functools
import hashlib
import itertools
import math
import os
import pickle
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from training.config import DataConfig, RunConfig, load_preset
from training.data.datasets import DATASETS, load_split, sources
from training.data.readers import smallnorb
from training.data.readers.smallnorb import CLASS_NAMES, file_name
from training.data.run_images import training_batches
from training.data.synthetic.toys.conditions import Conditions
from training.data.synthetic.toys.make import make, sit, sittings
from training.data.synthetic.toys.parts import ball
from training.data.synthetic.toys.renderer import RAYS_PER_SIDE, nearest, shade, surface
from training.data.synthetic.toys.studio import LIGHTINGS, cameras, photograph, taken
from training.data.synthetic.toys.studio import toy as new_toy

FEW = Conditions(train=(4,), test=(0,), elevations=(0, 6), azimuths=(0, 9), lightings=(2, 5))
PAIRS = 5 * 1 * 2 * 2 * 2
ALL_TOYS = list(itertools.product(range(5), range(10)))
KINDS = ("dat", "cat", "info")
COMMAND = ("-m", "training.cli", "make", "toys", "--data")
TEN_TOYS = """
import sys
from pathlib import Path
from training.data.synthetic.toys.conditions import Conditions
from training.data.synthetic.toys.make import make
make(Path(sys.argv[1]), Conditions(train=(4,), test=(0,)), processes=2)
"""
toy = functools.cache(new_toy)
# Of the pictures that results were measured on.
FEW_DIGESTS = {
    "train": "a9889df293db487156449f2ce6f4b7449e5772c24379e4e9f0fa24c04c251a8d",
    "test": "9f53d72735f7b01818b079ff48760c010273b3c438cbe1ac472f3664daca963d",
}
TOYS_DIGEST = "4b4746475570e90e61e6d295a3c0cc80f3bc293b4444a6b19929dd7598f86bee"
LIGHTINGS_DIGEST = "3a9fb8ec55da27aad51a916a0ab90377f51b2c4e63c8c01e47d0feaa67c4085e"


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A data root with toys under a few conditions."""
    return make(tmp_path_factory.mktemp("data"), FEW, processes=2).parent


def outline(category: int, instance: int, elevation: float, azimuth: float, size: int = 48) -> np.ndarray:
    subject = toy(category, instance)
    return nearest(subject.solids, cameras(subject.middle, azimuth, elevation, size)[0])[1] >= 0


def digest(folder: Path, split: str) -> str:
    content = hashlib.sha256()
    for kind in KINDS:
        content.update((folder / file_name("toys", split, kind)).read_bytes())
    return content.hexdigest()


@contextmanager
def at_work(root: Path, *program: str) -> Iterator[tuple["subprocess.Popen[bytes]", bytes]]:
    """What makes a set, its first pictures taken, and what it has said; killed, workers too, in the end."""
    command = [sys.executable, *program, str(root)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as running:
        assert running.stderr
        said = b""
        try:
            while not re.search(rb" [1-9]\d*/\d+ ", said):
                said += (more := os.read(running.stderr.fileno(), 1000))
                assert more, said
            yield running, said
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)


def test_there_are_as_many_pairs_as_in_smallnorb_under_the_same_conditions():
    conditions = Conditions()
    for split, toys in (("train", {4, 6, 7, 8, 9}), ("test", {0, 1, 2, 3, 5})):
        pairs = conditions.pairs(split)
        assert pairs.shape == (24_300, 5)
        assert len(np.unique(pairs, axis=0)) == 24_300
        assert set(pairs[:, 1].tolist()) == toys
        assert [len(np.unique(column)) for column in pairs.T] == [5, 5, 9, 18, 6]


def test_no_toy_is_in_both_splits():
    train, test = ({tuple(row) for row in Conditions().pairs(split)[:, :2]} for split in ("train", "test"))
    assert len(train) == len(test) == 25
    assert not train & test


def test_categories_take_turns_as_in_smallnorb_and_all_else_is_in_no_order():
    pairs = Conditions().pairs("train")
    np.testing.assert_array_equal(pairs[:, 0], np.arange(24_300) % 5)
    first = pairs[:1000]
    assert [len(np.unique(column)) for column in first.T] == [5, 5, 9, 18, 6]
    assert abs(np.corrcoef(np.arange(24_300), pairs[:, 1])[0, 1]) < 0.03


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_files_read_back_as_the_conditions_say(root, split):
    found = load_split("toys", split, root)
    expected = FEW.pairs(split)
    assert found.images.shape == (PAIRS, 96, 96, 2)
    np.testing.assert_array_equal(found.labels, expected[:, 0])
    np.testing.assert_array_equal(found.instance, expected[:, 1])
    np.testing.assert_array_equal(found.elevation_degrees, 30 + 5 * expected[:, 2])
    np.testing.assert_array_equal(found.azimuth_degrees, 20 * expected[:, 3])
    np.testing.assert_array_equal(found.lighting, expected[:, 4])


def test_each_picture_stands_where_its_factors_say(root):
    found = load_split("toys", "train", root)
    for index in (0, 13, 37):
        elevation, azimuth = int(found.elevation_degrees[index]), int(found.azimuth_degrees[index])
        subject = toy(int(found.labels[index]), int(found.instance[index]))
        pair = photograph(subject, azimuth, [elevation], [int(found.lighting[index])])[0, 0]
        for view in (0, 1):
            likeness = np.corrcoef(pair[view].ravel(), found.images[index, ..., view].ravel())[0, 1]
            assert likeness > 0.98


def test_whole_files_have_the_published_length():
    """Header and pairs; so few bytes more or less would be another format."""
    for file in sources()["smallnorb"].files:
        row = {"dat": 2 * 96 * 96, "cat": 4, "info": 16}[file.name.split("-")[-1].split(".")[0]]
        header = 8 + 4 * (4 if "-dat" in file.name else 3)
        assert file.content_bytes == header + 24_300 * row


def test_files_have_smallnorbs_header_and_no_more_than_it_says(root):
    for split, kind in itertools.product(("train", "test"), KINDS):
        row = {"dat": 2 * 96 * 96, "cat": 4, "info": 16}[kind]
        length = (root / "toys" / file_name("toys", split, kind)).stat().st_size
        assert length == 8 + 4 * (4 if kind == "dat" else 3) + PAIRS * row


def test_the_same_bytes_come_out_whatever_the_number_of_processes(root, tmp_path):
    again = make(tmp_path, FEW, processes=1)
    for split in ("train", "test"):
        assert digest(again, split) == digest(root / "toys", split)


def test_the_pictures_are_the_ones_that_results_were_measured_on(root):
    """Whoever changes a toy, a lamp or the grain makes another data set; its results need another name."""
    assert {split: digest(root / "toys", split) for split in ("train", "test")} == FEW_DIGESTS


def test_every_toy_is_the_one_that_results_were_measured_on():
    """Small pictures from three sides in the light from everywhere, as shadows take most of the time."""
    content = hashlib.sha256()
    for category, instance in ALL_TOYS:
        subject = toy(category, instance)
        sides = [cameras(subject.middle, azimuth, 30, 32 * RAYS_PER_SIDE)[0] for azimuth in (40, 160, 280)]
        light = np.array([[[shade(surface(subject.solids, rays), [])[0] for rays in sides]]])
        content.update(taken(1500 * light, np.random.default_rng(0)).tobytes())
    assert content.hexdigest() == TOYS_DIGEST


def test_every_lighting_is_the_one_that_results_were_measured_on():
    pictures = taken(photograph(toy(3, 0), 60, [45], range(6)), np.random.default_rng(0))
    assert hashlib.sha256(pictures.tobytes()).hexdigest() == LIGHTINGS_DIGEST


def test_another_half_turn_shows_another_side():
    for category in range(5):
        subject = toy(category, 4)
        front, back = (photograph(subject, azimuth, [30], [3])[0, 0, 0] for azimuth in (0, 180))
        assert np.abs(front - back).mean() > 3


def test_azimuths_go_round():
    subject = toy(0, 4)
    first, after_a_turn = (cameras(subject.middle, azimuth, 40)[0].eye for azimuth in (20, 380))
    np.testing.assert_allclose(first, after_a_turn, atol=1e-9)


def test_a_toy_faces_the_cameras_at_azimuth_0_and_shows_its_left_side_at_90():
    nose, left_eye = ball((0.4, 0, 0.5), (0.1,) * 3), ball((0, 0.4, 0.5), (0.1,) * 3)
    middle = np.array([0, 0, 0.5])
    depths = [
        [nearest([solid], cameras(middle, azimuth, 30)[0])[0].min() for solid in (nose, left_eye)]
        for azimuth in (0, 90)
    ]
    assert depths[0][0] < depths[0][1]
    assert depths[1][1] < depths[1][0]


@pytest.mark.parametrize("elevation", [30, 70])
def test_what_is_nearer_lies_farther_to_the_right_in_the_left_picture(elevation):
    middle = np.array([0.0, 0.0, 0.5])
    left, right = cameras(middle, 0, elevation)
    toward = -left.forward
    shifts = []
    for distance in (-0.5, 0.0, 0.5):
        views = [
            nearest([ball(tuple(middle + distance * toward), (0.05,) * 3)], rays)[1] == 0
            for rays in (left, right)
        ]
        columns = [np.flatnonzero(view.any(axis=0)).mean() for view in views]
        shifts.append(columns[0] - columns[1])
    assert shifts[0] < -5 < 5 < shifts[2]
    assert abs(shifts[1]) < 2


def test_both_cameras_stand_level_and_look_at_the_middle():
    middle = np.array([0.0, 0.0, 0.5])
    left, right = cameras(middle, 60, 45)
    assert left.eye[2] == pytest.approx(right.eye[2])
    between = math.degrees(math.acos(float(left.forward @ right.forward)))
    assert between == pytest.approx(6, rel=0.02)


def test_every_lighting_shows_something_else_and_no_lamp_is_always_on():
    pictures = photograph(toy(3, 4), 40, [45], range(6))[0, :, 0]
    standard = [(picture - picture.mean()) / picture.std() for picture in pictures]
    for first, second in itertools.combinations(standard, 2):
        assert np.abs(first - second).mean() > 0.05
    assert set.intersection(*(set(lamps) for lamps, _ in LIGHTINGS)) == set()


def test_brightness_does_not_tell_the_category():
    means = np.array(
        [
            [photograph(toy(c, i), 80, [50], range(6)).mean(axis=(0, 2, 3, 4)) for i in (1, 8)]
            for c in range(5)
        ]
    )
    within = taken(np.full((500, 1, 2, 4, 4), 150, np.float32), np.random.default_rng(0)).mean(
        axis=(1, 2, 3, 4)
    )
    assert means.mean(axis=1).std(axis=0).max() < 0.3 * within.std()


def test_grain_is_a_few_levels_and_alike_in_both_directions():
    grain = taken(np.full((4, 1, 2, 96, 96), 100, np.float32), np.random.default_rng(0)).astype(float)
    grain -= np.median(grain, axis=(2, 3, 4), keepdims=True)
    assert np.abs(grain).max() <= 5
    assert 1 < grain.std() < 2.5
    assert abs(grain.mean()) < 0.5


def test_bright_pixels_end_at_255_and_do_not_start_again_at_0():
    assert (taken(np.full((1, 1, 2, 8, 8), 400, np.float32), np.random.default_rng(0)) == 255).all()


@pytest.mark.parametrize(("category", "instance"), ALL_TOYS)
def test_every_toy_stands_on_the_table_inside_its_ball(category, instance):
    subject = toy(category, instance)
    corners = np.concatenate([solid.corners for solid in subject.solids])
    assert corners[:, 2].min() == pytest.approx(0, abs=1e-9)
    assert np.linalg.norm(corners - subject.middle, axis=1).max() <= subject.radius + 1e-9


@pytest.mark.parametrize("category", range(5))
def test_toys_fill_a_similar_part_of_the_frame_and_stay_in_it(category):
    for instance in range(10):
        seen = np.stack(
            [outline(category, instance, *view) for view in ((30, 0), (30, 80), (50, 140), (70, 200))]
        )
        assert 0.06 < seen.mean() < 0.3
        border = seen[:, [0, -1], :].sum() + seen[:, :, [0, -1]].sum()
        assert border == 0, f"toy {instance} is cut off"


def test_areas_of_different_categories_overlap():
    views = ((30, 0), (30, 80), (50, 60), (70, 200))
    areas = {
        category: [outline(category, instance, *view).mean() for instance in range(10) for view in views]
        for category in range(5)
    }
    for one, other in itertools.combinations(range(5), 2):
        assert max(areas[one]) > min(areas[other])
        assert max(areas[other]) > min(areas[one])


def test_toys_of_a_category_differ_in_shape():
    for category in range(5):
        seen = [outline(category, instance, 40, 40) for instance in range(10)]
        for one, other in itertools.combinations(seen, 2):
            assert (one & other).sum() / (one | other).sum() < 0.95


def test_a_missing_file_names_file_folder_and_the_command_that_makes_it(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"training-dat.mat .*make it with: capsnet-train make toys"
    ) as error:
        load_split("toys", "train", tmp_path)
    assert str(tmp_path) in str(error.value)


def test_files_of_smallnorb_are_not_taken_for_toys(root, tmp_path):
    (tmp_path / "toys").mkdir()
    for kind in KINDS:
        content = (root / "toys" / file_name("toys", "train", kind)).read_bytes()
        (tmp_path / "toys" / file_name("smallnorb", "train", kind)).write_bytes(content)
    smallnorb.read_split(tmp_path / "toys", "train")
    with pytest.raises(FileNotFoundError):
        load_split("toys", "train", tmp_path)


def test_a_set_that_is_there_is_left_alone(root):
    before = digest(root / "toys", "train")
    with pytest.raises(FileExistsError, match=r"toys is there already; to make it again, remove it first"):
        make(root, FEW)
    assert digest(root / "toys", "train") == before


def test_only_one_process_makes_a_set_at_a_time(tmp_path):
    (tmp_path / "toys.part").mkdir()
    other = os.open(tmp_path / "toys.part", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(ValueError, match=r"another process is making .*toys; wait for it"):
        make(tmp_path, FEW)
    os.close(other)
    assert (tmp_path / "toys.part").exists()


def test_what_a_killed_process_left_is_no_obstacle_and_no_data(tmp_path):
    (tmp_path / "toys.part").mkdir()
    (tmp_path / "toys.part" / file_name("toys", "train", "dat")).write_bytes(b"half")
    (tmp_path / "toys.part" / "other").write_bytes(b"")
    one = Conditions(train=(4,), test=(0,), elevations=(0,), azimuths=(0,), lightings=(0,))
    folder = make(tmp_path, one, processes=2)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        file_name("toys", split, kind) for split in ("train", "test") for kind in KINDS
    )
    assert not (tmp_path / "toys.part").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_leaves_nothing_when_it_is_stopped(tmp_path, number):
    with at_work(tmp_path, *COMMAND) as (running, said):
        running.send_signal(number)
        said += running.communicate(timeout=60)[1]  # ends when no worker can say more
        assert running.returncode == 130
        assert b"Traceback" not in said
        assert list(tmp_path.iterdir()) == []


def test_a_signal_that_comes_again_does_not_cut_the_tidying_up_short(tmp_path):
    with at_work(tmp_path, "-c", TEN_TOYS) as (running, _):
        while running.poll() is None:
            os.killpg(running.pid, signal.SIGTERM)  # as `timeout` does, but more often
            time.sleep(0.001)
        running.communicate(timeout=60)
        assert list(tmp_path.iterdir()) == []


def test_a_worker_sends_too_little_to_be_stopped_amid_it(root, tmp_path):
    """Its parent would wait for ever for the rest of a message that is longer than a pipe takes at once."""
    folder = Path(shutil.copytree(root / "toys", tmp_path / "toys"))
    for split in ("train", "test"):
        smallnorb.open_matrix(folder / file_name("toys", split, "dat"))[...] = 0
    sent = [pickle.dumps(sit(sitting, folder)) for sitting in sittings(FEW)]
    assert max(map(len, sent)) < select.PIPE_BUF / 2
    assert [digest(folder, split) for split in FEW_DIGESTS] == list(FEW_DIGESTS.values())


def test_workers_end_when_their_parent_is_killed(tmp_path):
    with at_work(tmp_path, "-c", TEN_TOYS) as (running, _):
        running.kill()
        running.communicate(timeout=60)  # ends when no worker can say more


def test_toys_are_trained_on_as_smallnorb_is(root):
    preset = load_preset("smallnorb")
    data = DataConfig(
        name="toys",
        resize_pixels=48,
        crop_pixels=32,
        max_shift_pixels=0,
        max_brightness=0.2,
        contrast=(0.2, 1.8),
        validation_images=10,
    )
    train, validation = training_batches(RunConfig(model=preset.model, data=data), root)
    assert (len(train), len(validation)) == (PAIRS - 10, 10)


def test_toys_have_smallnorbs_classes_and_pictures_that_are_taken_as_they_are():
    own = {"name", "title", "folder", "read", "source", "made", "trained_on", "limits"}
    toys, original = (
        {name: value for name, value in vars(DATASETS[data]).items() if name not in own}
        for data in ("toys", "smallnorb")
    )
    assert toys == original
    assert toys["class_names"] == CLASS_NAMES
