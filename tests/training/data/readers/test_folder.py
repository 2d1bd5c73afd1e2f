import os
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from export.contract.manifest import Preprocessing
from export.contract.pictures import read_picture
from export.contract.preprocess import to_input
from tests.support.small_pictures import saved
from training.config import from_dict, load_preset, to_dict
from training.data.images import counts_of_each_class, hold_out
from training.data.own_pictures import configure, find_again
from training.data.readers import folder as folder_module
from training.data.readers.folder import channels_of, in_split, pictures_by_class, read_folder
from training.data.run_images import evaluation_batches, load_images, training_batches

CLASSES = ("cat", "dog")


def picture(seed: int, size: tuple[int, int] = (20, 16), channels: int = 3) -> Image.Image:
    """Noise; width and height."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], channels), np.uint8)
    return Image.fromarray(pixels.squeeze())


def make_folder(parent, *, counts=(10, 15), channels=3):
    """A folder of two classes with so many pictures."""
    root = parent / "pictures"
    for label, (name, count) in enumerate(zip(CLASSES, counts, strict=True)):
        (root / name).mkdir(parents=True)
        for index in range(count):
            picture(100 * label + index, channels=channels).save(root / name / f"{index}.png")
    return root


@pytest.fixture
def pictures(tmp_path):
    return make_folder(tmp_path)


def images_as_bytes(split):
    return [image.tobytes() for image in split.images]


def test_the_classes_are_the_folders_names_in_order(pictures):
    assert configure(load_preset("images"), pictures).data.class_names == ("cat", "dog")


@pytest.mark.parametrize(
    "preset", ["images", "toys", "matrix-toys-3-iterations", "smallnorb", "matrix-mnist"]
)
def test_other_presets_networks_can_be_trained_on_them(preset, pictures):
    config = configure(load_preset(preset), pictures)
    assert (config.data.name, config.model.classes, config.data.held_out) == ("images", 2, "each-class")


def test_every_picture_is_in_one_of_the_splits_with_its_class(pictures):
    found = {"train": [], "test": []}
    for split, known in found.items():
        read = read_folder(pictures, split, CLASSES, 24, 3)
        assert read.images.shape[1:] == (24, 24, 3)
        assert read.images.dtype == np.uint8
        assert read.labels.dtype == np.int64
        known += zip(images_as_bytes(read), read.labels.tolist(), strict=True)
    facts = Preprocessing(height=24, width=24, channels=3, polarity="any", placement="fit")
    expected = {
        ((to_input(Image.open(path), facts) * 255).round().astype(np.uint8).tobytes(), label)
        for label, name in enumerate(CLASSES)
        for path in (pictures / name).iterdir()
    }
    assert len(found["train"]) + len(found["test"]) == len(expected) == 25
    assert {*found["train"], *found["test"]} == expected


def test_a_fifth_of_each_class_is_kept_for_the_test(pictures):
    test = read_folder(pictures, "test", CLASSES, 16, 3)
    assert np.bincount(test.labels).tolist() == [2, 3]


@pytest.mark.parametrize("counts", [(2, 2), (2, 40), (3, 5)])
def test_each_split_has_a_picture_of_each_class(tmp_path, counts):
    root = make_folder(tmp_path, counts=counts)
    for split in ("train", "test"):
        assert set(read_folder(root, split, CLASSES, 16, 3).labels.tolist()) == {0, 1}


def test_the_splits_do_not_depend_on_the_file_systems_order(pictures, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    for path in sorted(pictures.rglob("*.png"), reverse=True):
        (elsewhere / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, elsewhere / path.parent.name / path.name)
    for split in ("train", "test"):
        here, there = (read_folder(root, split, CLASSES, 16, 3) for root in (pictures, elsewhere))
        assert np.array_equal(here.images, there.images)
        assert np.array_equal(here.labels, there.labels)


def test_the_test_pictures_of_two_classes_are_chosen_apart(tmp_path):
    root = make_folder(tmp_path, counts=(40, 40))
    for index in range(40):
        shutil.copyfile(root / "cat" / f"{index}.png", root / "dog" / f"{index}.png")
    test = read_folder(root, "test", CLASSES, 16, 3)
    cats, dogs = (set(images_as_bytes(test)[8 * label : 8 * label + 8]) for label in (0, 1))
    assert cats != dogs


def test_a_further_picture_moves_at_most_one_other_to_the_test(pictures):
    before = set(images_as_bytes(read_folder(pictures, "test", CLASSES, 16, 3)))
    picture(999).save(pictures / "cat" / "new.png")
    after = set(images_as_bytes(read_folder(pictures, "test", CLASSES, 16, 3)))
    assert len(before - after) <= 1
    assert len(after - before) <= 1


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp", "tiff", "gif"])
def test_a_picture_is_read_as_the_service_reads_it(pictures, suffix):
    shutil.rmtree(pictures / "dog")
    (pictures / "dog").mkdir()
    for index in range(2):
        picture(7, (50, 33)).save(pictures / "dog" / f"{index}.{suffix}")
    facts = Preprocessing(height=28, width=28, channels=3, polarity="any", placement="fit")
    content = (pictures / "dog" / f"0.{suffix}").read_bytes()
    served = to_input(read_picture(content, max_pixels=10_000), facts)
    read = read_folder(pictures, "test", CLASSES, 28, 3)
    [trained] = read.images[read.labels == 1]
    assert np.array_equal(trained.astype(np.float32) / np.float32(255), served)


def test_of_a_moving_picture_the_first_frame_is_read(pictures):
    frames = [Image.new("RGB", (24, 24), color) for color in ("red", "blue")]
    for path in (pictures / "cat").iterdir():
        path.unlink()
    for index in range(2):
        frames[0].save(pictures / "cat" / f"{index}.gif", save_all=True, append_images=frames[1:])
    read = read_folder(pictures, "test", CLASSES, 24, 3)
    assert (read.images[read.labels == 0] == (255, 0, 0)).all()


def test_pictures_are_gray_if_all_are_however_they_are_stored(tmp_path):
    root = make_folder(tmp_path, channels=1)
    picture(1, channels=1).convert("RGB").save(root / "cat" / "rgb.png")
    picture(2, channels=1).convert("RGB").save(root / "cat" / "rgb.jpg")
    picture(3, channels=1).convert("RGBA").save(root / "cat" / "rgba.webp", lossless=True)
    picture(4, channels=1).convert("P").save(root / "cat" / "palette.gif")
    assert channels_of(root) == 1
    assert configure(load_preset("images"), root).model.image_channels == 1


def test_one_picture_in_color_makes_all_of_them_color(tmp_path):
    root = make_folder(tmp_path, channels=1)
    picture(1).save(root / "dog" / "color.png")
    assert channels_of(root) == 3
    assert configure(load_preset("images"), root).model.image_channels == 3


@pytest.mark.parametrize(("rank", "is_told"), [(None, True), ("0", True), ("1", False)])
def test_who_waits_at_a_terminal_sees_how_many_pictures_are_read(
    pictures, monkeypatch, capsys, rank, is_told
):
    monkeypatch.setattr(folder_module, "SOON_S", 0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    if rank:
        monkeypatch.setenv("RANK", rank)
    channels_of(pictures)
    assert ("reading: " in capsys.readouterr().err) == is_told


@pytest.mark.parametrize("name", [".DS_Store", ".hidden.png", "Thumbs.db", "desktop.ini"])
def test_hidden_files_are_passed_over(pictures, name):
    before = images_as_bytes(read_folder(pictures, "train", CLASSES, 16, 3))
    for place in (pictures, pictures / "cat"):
        (place / name).write_bytes(b"not a picture")
    assert images_as_bytes(read_folder(pictures, "train", CLASSES, 16, 3)) == before
    assert channels_of(pictures) == 3


def refused(pictures, message):
    with pytest.raises(ValueError, match=message):
        configure(load_preset("images"), pictures)


def test_a_file_that_is_no_picture_is_refused_by_name(pictures):
    (pictures / "cat" / "notes.txt").write_text("whiskers")
    refused(pictures, r"cat/notes\.txt: expected a PNG, .* file; came 8 bytes")


def test_a_damaged_picture_is_refused_by_name_before_training_whatever_its_split(pictures):
    for index in range(10):
        path = pictures / "cat" / f"{index}.png"
        whole = path.read_bytes()
        path.write_bytes(whole[:-40])
        refused(pictures, rf"cat/{index}\.png: PNG file is damaged or cut short")
        path.write_bytes(whole)


def test_all_damaged_pictures_are_named_at_once(pictures):
    for name in ("cat/a.png", "dog/b.png"):
        (pictures / name).write_bytes(b"no picture")
    refused(pictures, r"cat/a\.png: expected .*; .*dog/b\.png: expected")


def test_of_very_many_damaged_pictures_some_are_named_and_the_others_counted(pictures):
    for index in range(13):
        (pictures / "cat" / f"x{index:02}.png").write_bytes(b"no picture")
    refused(pictures, r"cat/x09\.png: expected [^;]*; came [^;]*; and 3 more$")


def test_a_picture_of_too_few_pixels_is_refused_by_name(pictures):
    picture(1, (7, 30)).save(pictures / "cat" / "thin.png")
    refused(pictures, r"cat/thin\.png: picture is 7x30")


def test_a_picture_of_too_many_pixels_is_refused_by_name(pictures, monkeypatch):
    monkeypatch.setattr(folder_module, "MAX_PIXELS", 1000)
    picture(1, (100, 11)).save(pictures / "cat" / "wide.png")
    refused(pictures, r"cat/wide\.png: picture is 100x11")


def test_a_file_beside_the_classes_is_refused_by_name(pictures):
    picture(1).save(pictures / "stray.png")
    refused(pictures, r"stray\.png is not a folder; put each picture into the folder of its class")


def test_a_folder_inside_a_class_is_refused_by_name(pictures):
    (pictures / "cat" / "kittens").mkdir()
    refused(pictures, r"kittens is a folder; move its pictures into .*cat, or remove it")


def test_a_class_without_a_picture_is_refused_by_name(pictures):
    (pictures / "emu").mkdir()
    (pictures / "emu" / ".DS_Store").write_bytes(b"")
    refused(pictures, "emu holds no pictures; expected at least 2")


def test_all_that_is_wrong_with_the_folders_is_named_at_once(pictures):
    picture(1).save(pictures / "stray.png")
    (pictures / "emu").mkdir()
    (pictures / "cat" / "kittens").mkdir()
    refused(
        pictures, r"stray\.png is not a folder; .*kittens is a folder; .*emu holds no pictures; .*or remove"
    )


def test_pictures_that_are_tested_and_trained_on_or_lie_in_two_classes_are_warned_of(pictures, caplog):
    configure(load_preset("images"), pictures)
    assert not caplog.messages
    for index in range(4):
        shutil.copyfile(pictures / "cat" / "0.png", pictures / "cat" / f"copy{index}.png")
    shutil.copyfile(pictures / "dog" / "0.png", pictures / "dog" / "again.png")
    shutil.copyfile(pictures / "dog" / "0.png", pictures / "cat" / "dog.png")
    found = pictures_by_class(pictures)
    groups = [[f"cat/{name}" for name in ("0", "copy0", "copy1", "copy2", "copy3")]]
    groups += [["dog/0", "dog/again", "cat/dog"]]
    tested = {
        f"{path.parent.name}/{path.stem}" for paths in found.values() for path in in_split(paths, "test")
    }
    learned = [name for group in groups for name in group if name in tested and not tested.issuperset(group)]
    assert learned, "of eight copies some are tested on"
    configure(load_preset("images"), pictures)
    first, second = caplog.messages
    assert f"a copy among those to train on: {len(learned)}, such as" in first
    assert first.endswith("; the test error will be too low")
    said = "pictures that are in two classes or more: 1, such as "
    assert second == f"{said}{pictures}/cat/dog.png and {pictures}/dog/0.png"


def test_a_class_with_one_picture_is_refused_by_name(pictures):
    (pictures / "emu").mkdir()
    picture(1).save(pictures / "emu" / "1.png")
    refused(pictures, "emu holds 1 picture; expected at least 2")


def test_a_link_to_nothing_and_a_pipe_are_refused_by_name(pictures):
    (pictures / "cat" / "link.png").symlink_to("nowhere.png")
    refused(pictures, r"link\.png is no file, nor a link to one")
    (pictures / "cat" / "link.png").unlink()
    os.mkfifo(pictures / "cat" / "pipe.png")
    refused(pictures, r"pipe\.png is no file")


@pytest.mark.parametrize("name", ["two\nlines", "\udcff"])
def test_a_class_whose_name_cannot_be_written_down_is_refused(pictures, name):
    (pictures / name).mkdir()
    refused(pictures, "a class's name must be printable text")


def test_classes_of_two_pictures_have_none_to_choose_a_checkpoint_with(tmp_path):
    root = make_folder(tmp_path, counts=(2, 2))
    refused(
        root, "pictures holds 2 pictures of each class; expected a class with at least 3: one to learn from"
    )


def test_without_validation_two_pictures_of_each_class_are_enough(tmp_path):
    every = load_preset("mnist-long")
    config = configure(every, make_folder(tmp_path, counts=(2, 2)))
    train, validation = training_batches(config, tmp_path)
    assert (sorted(train.images.labels.tolist()), validation) == ([0, 1], None)


@pytest.mark.parametrize(
    ("counts", "trained_on", "held_out"),
    [
        ((120, 10), [87, 7], [9, 1]),
        ((2, 3), [1, 1], [0, 1]),
        ((2, 40), [1, 29], [0, 3]),
        ((3, 3), [1, 1], [1, 1]),
    ],
)
def test_of_each_class_its_share_is_held_out_and_something_left(tmp_path, counts, trained_on, held_out):
    config = configure(load_preset("images"), make_folder(tmp_path, counts=counts))
    train, validation = training_batches(config, tmp_path)
    assert train.images.labels.bincount(minlength=2).tolist() == trained_on
    assert validation.images.labels.bincount(minlength=2).tolist() == held_out
    assert len(validation) == config.data.validation_images


def test_the_seed_chooses_which_pictures_are_held_out(pictures, tmp_path):
    config = configure(load_preset("images"), pictures)
    found = [training_batches(replace(config, seed=seed), tmp_path)[1].images.pixels for seed in (0, 0, 1)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_run_of_an_earlier_version_holds_out_what_it_did(pictures, tmp_path):
    config = configure(load_preset("images"), pictures)
    earlier = to_dict(replace(config, data=replace(config.data, validation_images=2)))
    del earlier["data"]["held_out"]
    found = [part.images for part in training_batches(from_dict(earlier), tmp_path)]
    expected = hold_out(load_images(config, "train", tmp_path), 2, config.seed)
    assert all(torch.equal(one.pixels, other.pixels) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("sizes", "count", "counts"),
    [
        ([96, 8], 10, [9, 1]),
        ([50, 30, 20], 10, [5, 3, 2]),
        ([1, 0, 9], 1, [0, 0, 1]),
        ([4] * 20, 8, [1] * 20),
        ([2, 3], 9, [1, 2]),
        ([1, 1], 1, [0, 0]),
    ],
)
def test_classes_share_what_is_held_out(sizes, count, counts):
    assert counts_of_each_class(sizes, count) == counts


def test_more_of_each_class_than_can_be_held_out_is_refused(pictures, tmp_path):
    config = configure(load_preset("images"), pictures)
    config = replace(config, data=replace(config.data, validation_images=19))
    with pytest.raises(ValueError, match=r"19 validation images asked for; .* 18 can be held out"):
        training_batches(config, tmp_path)


def test_a_folder_whose_path_no_json_can_hold_is_refused_before_training(tmp_path):
    root = make_folder(tmp_path / os.fsdecode(b"ba\xff"), counts=(5, 5))
    refused(root, r"--images '.*ba\\udcff/pictures': the path is not UTF-8")
    config = configure(load_preset("images"), make_folder(tmp_path, counts=(5, 5)))
    with pytest.raises(ValueError, match="the path is not UTF-8"):
        find_again(config, root, tmp_path / "run")


def test_a_crop_that_a_preset_asks_for_in_vain_is_warned_of(pictures, caplog):
    configure(load_preset("smallnorb"), pictures)
    resize, crop = caplog.messages
    assert resize.startswith(
        "data.resize_pixels: 48 of the preset smallnorb has no effect: whole pictures are"
    )
    assert crop.startswith("data.crop_pixels: 32 of the preset smallnorb has no effect")


def test_epochs_are_as_long_as_a_preset_for_own_pictures_says_and_no_other(pictures, caplog):
    own, other = load_preset("images"), load_preset("multimnist-constant")
    own = replace(own, data=replace(own.data, epoch_images=500))
    assert configure(own, pictures).data.epoch_images == 500
    assert not caplog.messages
    assert configure(other, pictures).data.epoch_images is None
    [told] = [line for line in caplog.messages if "epoch_images" in line]
    assert told.startswith("data.epoch_images: 275000 of the preset multimnist-constant has no effect")


@pytest.mark.parametrize("folder", [None, "pictures"])
def test_a_preset_for_own_pictures_needs_images_whatever_folder_it_names(pictures, tmp_path, folder):
    preset = load_preset("images")
    named = replace(preset, data=replace(preset.data, folder=folder and str(pictures)))
    with pytest.raises(ValueError, match="the preset images is for your own pictures: add --images FOLDER"):
        training_batches(named, tmp_path)


@pytest.mark.parametrize(("left", "said"), [(0, "no folders"), (1, "1 folder")])
def test_fewer_than_two_classes_are_refused(pictures, left, said):
    for name in CLASSES[left:]:
        shutil.rmtree(pictures / name)
    refused(pictures, f"pictures holds {said}; expected one per class, at least 2")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere is not a folder"):
        configure(load_preset("images"), tmp_path / "nowhere")


def test_a_folder_whose_classes_have_changed_is_refused(pictures):
    (pictures / "cat").rename(pictures / "wolf")
    with pytest.raises(ValueError, match="holds the classes dog, wolf; expected cat, dog"):
        read_folder(pictures, "train", CLASSES, 16, 3)


def add(pictures):
    picture(999).save(pictures / "cat" / "new.png")


def remove(pictures):
    (pictures / "dog" / "3.png").unlink()


def rename(pictures):
    (pictures / "dog" / "3.png").rename(pictures / "dog" / "three.png")


def move_to_another_class(pictures):
    (pictures / "dog" / "12.png").rename(pictures / "cat" / "12.png")


@pytest.mark.parametrize("change", [add, remove, rename, move_to_another_class])
@pytest.mark.parametrize("read", [training_batches, evaluation_batches])
def test_a_folder_whose_pictures_have_changed_is_refused(pictures, read, change):
    """Else a run that goes on would be validated on what it has learned."""
    config = configure(load_preset("images"), pictures)
    change(pictures)
    with pytest.raises(ValueError, match="the folder has changed since the run was started"):
        read(config, pictures)


def test_a_folder_that_was_moved_gives_the_same_pictures(pictures, tmp_path):
    config = configure(load_preset("images"), pictures)
    before = [part.images.pixels for part in training_batches(config, tmp_path)]
    pictures.rename(tmp_path / "moved")
    found = find_again(config, tmp_path / "moved", tmp_path / "run")
    after = [part.images.pixels for part in training_batches(found, tmp_path)]
    assert all(map(torch.equal, before, after))


def test_a_preset_gets_the_folders_classes_and_whole_pictures(pictures):
    preset = load_preset("images")
    config = configure(preset, pictures)
    assert config.model.classes == 2
    assert config.model.image_size == preset.model.image_size
    assert config.optimizer == preset.optimizer
    assert (config.data.name, config.data.folder) == ("images", str(pictures))
    assert (config.data.resize_pixels, config.data.crop_pixels) == (None, None)


def test_the_folder_is_kept_as_it_was_named(pictures, monkeypatch):
    """Bundles tell it to whoever asks: where a relative one lies is nobody's business."""
    monkeypatch.chdir(pictures.parent)
    assert configure(load_preset("images"), folder_module.Path("pictures")).data.folder == "pictures"


@pytest.mark.parametrize(("counts", "held_out"), [((3, 3), 2), ((40, 40), 6)])
def test_a_tenth_of_few_training_images_is_held_out(tmp_path, counts, held_out):
    root = make_folder(tmp_path, counts=counts)
    assert configure(load_preset("images"), root).data.validation_images == held_out


def test_a_picture_held_sideways_is_set_upright(pictures):
    upright = picture(5, (30, 20))
    tilted = upright.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned a quarter to the left
    for path in (pictures / "cat").iterdir():
        path.unlink()
    for index in range(2):
        (pictures / "cat" / f"{index}.png").write_bytes(saved(tilted, "PNG", exif=exif))
    read = read_folder(pictures, "test", CLASSES, 30, 3)
    [image] = read.images[read.labels == 0]
    assert np.array_equal(image[5:25], np.asarray(upright))
