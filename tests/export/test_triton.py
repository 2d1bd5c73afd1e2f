"""A Triton model repository made from a bundle: read as Triton reads it, run as its ensemble would."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from google.protobuf import text_format
from onnx import numpy_helper
from tritonclient.grpc.model_config_pb2 import TYPE_FP32, ModelConfig, ModelInstanceGroup

from export.cli import main
from export.contract.manifest import BundleError, newest_version, read_manifest
from export.triton import mask_graph, read_bundle, write_repository
from export.triton_config import shared_part
from service.inference.loading import load_engine
from service.inference.providers import TOLERANCE, EngineOptions
from service.models.interface import one_hot
from tests.support.broken_bundle import of_unknown_operator, samples_with
from tests.support.tiny_bundle import CLASSES, SIDE, replace_file, rewrite_manifest, write_bundle

SHIPPED = newest_version(Path("models/capsnet-mnist"))
GRAPHS = ("tiny", "tiny-mask", "tiny-decoder")

Tensors = dict[str, np.ndarray]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "models" / "tiny" / "1")


@pytest.fixture
def repository(bundle: Path, tmp_path: Path) -> Path:
    out = tmp_path / "triton"
    write_repository(bundle, out, "cpu", 32)
    return out


def test_a_full_disk_is_an_error_that_names_the_repository(bundle: Path, tmp_path: Path, monkeypatch):
    def full_disk(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("export.triton._write_model", full_disk)
    with pytest.raises(OSError, match="No space left on device") as failed:
        write_repository(bundle, tmp_path / "triton", "cpu", 32)
    assert failed.value.filename == str(tmp_path / "triton")


def test_the_ensemble_gives_what_the_service_gives(tmp_path: Path):
    write_repository(SHIPPED, tmp_path / "triton", "cpu", 32)
    with np.load(SHIPPED / "samples.npz") as samples:
        pixels = samples["pixels"]
    found = run_ensemble(tmp_path / "triton", "capsnet-mnist-reconstruct", {"pixels": pixels})
    expected = service_answers(SHIPPED, pixels)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].shape == values.shape
        np.testing.assert_allclose(found[name], values, atol=TOLERANCE["cpu"], err_msg=name)


def test_the_explain_graph_is_a_model_that_holds_its_weights(tmp_path: Path):
    """Triton has a folder for each model; the encoder's file is not in it."""
    write_repository(SHIPPED, tmp_path / "triton", "cpu", 32)
    name = "capsnet-mnist-explain"
    config, folder = read_config(tmp_path / "triton" / name), tmp_path / "triton" / name / SHIPPED.name
    assert [path.name for path in folder.iterdir()] == ["model.onnx"]
    pixels = np.load(SHIPPED / "samples.npz")["pixels"]
    session = ort.InferenceSession((folder / "model.onnx").read_bytes(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(names, {"pixels": pixels}), strict=True))
    assert dims(config.output) == {name: list(values.shape[1:]) for name, values in found.items()}
    expected = service_answers(SHIPPED, pixels)
    np.testing.assert_allclose(found["capsules"][:, -1], expected["poses"], atol=TOLERANCE["cpu"])


@pytest.mark.parametrize("model", [path.name for path in sorted(Path("models").iterdir())])
def test_triton_reads_every_configuration_of_a_shipped_model(tmp_path: Path, model: str):
    bundle = newest_version(Path("models") / model)
    write_repository(bundle, tmp_path / "triton", "cpu", 32)
    configs = {folder.name: read_config(folder) for folder in (tmp_path / "triton").iterdir()}
    roles = ("", "-mask", "-decoder", "-explain", "-reconstruct")
    assert configs.keys() == {f"{model}{role}" for role in roles}
    for name, config in configs.items():
        assert bool(config.backend) != bool(config.platform), name  # Triton takes one of them
        for tensor in (*config.input, *config.output):
            assert tensor.data_type == TYPE_FP32, name
            assert all(size > 0 for size in tensor.dims), name
        if config.backend:
            graph = onnx.load(tmp_path / "triton" / name / bundle.name / "model.onnx").graph
            assert dims(config.input) == sizes_without_batch(graph.input)
            assert dims(config.output) == sizes_without_batch(graph.output)


def test_an_explain_graph_that_reads_another_file_is_refused(tmp_path: Path):
    bundle = tmp_path / SHIPPED.parent.name / "1"
    shutil.copytree(SHIPPED, bundle)
    changed = (bundle / "explain.onnx").read_bytes().replace(b"encoder.onnx", b"decoder.onnx")
    replace_file(bundle, "explain", changed)
    with pytest.raises(BundleError, match=r"explain\.onnx keeps tensors elsewhere than in encoder\.onnx"):
        read_bundle(bundle)


@pytest.mark.parametrize("images", [1, 3, 32])
def test_the_ensemble_takes_every_batch_up_to_its_largest(repository: Path, images: int):
    pixels = noise(images)
    found = run_ensemble(repository, "tiny-reconstruct", {"pixels": pixels})
    for row in range(images):
        alone = run_ensemble(repository, "tiny-reconstruct", {"pixels": pixels[row : row + 1]})
        for name, values in alone.items():
            np.testing.assert_allclose(found[name][row : row + 1], values, atol=1e-6)


def test_the_largest_batch_is_that_of_every_model(bundle: Path, tmp_path: Path):
    write_repository(bundle, tmp_path / "triton", "cpu", 24)
    configs = [read_config(folder) for folder in sorted((tmp_path / "triton").iterdir())]
    assert [config.max_batch_size for config in configs] == [24] * 4
    sizes = [list(c.dynamic_batching.preferred_batch_size) for c in configs if c.backend]
    assert sizes == [[24]] * 3


def test_a_model_may_be_called_like_a_field_of_its_configuration(bundle: Path, tmp_path: Path):
    named = shutil.copytree(bundle, tmp_path / "models" / "max_batch_size-a" / "1")
    rewrite_manifest(named, model="max_batch_size-a")
    write_repository(named, tmp_path / "repository", "cpu", 32)
    [config] = (tmp_path / "repository").glob("max_batch_size-a/config.pbtxt")
    parsed = text_format.Parse(config.read_text(), ModelConfig())
    assert (parsed.name, len(parsed.input), len(parsed.output)) == ("max_batch_size-a", 1, 2)
    shared = text_format.Parse(shared_part(config.read_text()), ModelConfig())
    assert (shared.name, len(shared.input), len(shared.output)) == ("max_batch_size-a", 1, 2)


def test_names_and_dims_are_those_of_the_graphs(repository: Path):
    for name in GRAPHS:
        config = read_config(repository / name)
        graph = onnx.load(repository / name / "1" / "model.onnx").graph
        assert config.name == name
        assert config.backend == "onnxruntime"
        assert dims(config.input) == sizes_without_batch(graph.input)
        assert dims(config.output) == sizes_without_batch(graph.output)
        assert {tensor.data_type for tensor in (*config.input, *config.output)} == {TYPE_FP32}


def test_the_ensemble_is_typed_as_the_graphs_it_joins(repository: Path):
    ensemble = read_config(repository / "tiny-reconstruct")
    assert ensemble.platform == "ensemble"
    joined = dims(ensemble.input) | dims(ensemble.output)
    for step in ensemble.ensemble_scheduling.step:
        model = read_config(repository / step.model_name)
        for tensors, names in ((model.input, step.input_map), (model.output, step.output_map)):
            assert dims(tensors).keys() == names.keys()
            for name, shape in dims(tensors).items():
                assert joined.setdefault(names[name], shape) == shape
    assert dims(ensemble.output).keys() == {"probabilities", "poses", "reconstruction"}


def test_matrix_poses_stay_flat(tmp_path: Path):
    bundle = write_bundle(tmp_path / "models" / "matrix" / "1", pose_shape=(4, 4))
    write_repository(bundle, tmp_path / "triton", "cpu", 32)
    assert dims(read_config(tmp_path / "triton" / "matrix").output)["poses"] == [len(CLASSES), 16]
    found = run_ensemble(tmp_path / "triton", "matrix-reconstruct", {"pixels": noise(2)})
    assert found["poses"].shape == (2, len(CLASSES), 16)


def test_labels_stand_in_the_order_of_the_probabilities(tmp_path: Path):
    classes = ("cat", "Straße", "a b: c")
    bundle = write_bundle(tmp_path / "models" / "tiny" / "1", classes=classes)
    write_repository(bundle, tmp_path / "triton", "cpu", 32)
    for name in ("tiny", "tiny-reconstruct"):
        folder = tmp_path / "triton" / name
        labeled = {t.name: t.label_filename for t in read_config(folder).output if t.label_filename}
        assert labeled == {"probabilities": "labels.txt"}
        assert (folder / "labels.txt").read_text(encoding="utf-8").splitlines() == list(classes)


def test_a_class_name_of_two_lines_is_refused(bundle: Path, tmp_path: Path):
    rewrite_manifest(bundle, class_names=("0", "1\n2", "3"))
    with pytest.raises(BundleError, match=r"class name '1\\n2' must be one line"):
        write_repository(bundle, tmp_path / "triton", "cpu", 32)


def test_the_mask_marks_the_first_of_equals_alone(bundle: Path):
    probabilities = np.array(
        [[0.2, 0.7, 0.1], [0.5, 0.5, 0.5], [0.1, 0.4, 0.4], [0.0, 0.0, 0.0], [0.9, 0.1, 0.9]], np.float32
    )
    session = open_graph(mask_graph(read_bundle(bundle)))
    (mask,) = session.run(None, {"probabilities": probabilities})
    assert mask.dtype == np.float32
    np.testing.assert_array_equal(mask, np.eye(3, dtype=np.float32)[probabilities.argmax(axis=1)])


def test_the_mask_needs_no_newer_runtime_than_the_encoder(bundle: Path):
    encoder = onnx.load(bundle / "encoder.onnx")
    mask = onnx.load_model_from_string(mask_graph(read_bundle(bundle)))
    onnx.checker.check_model(mask, full_check=True)
    assert mask.ir_version == encoder.ir_version
    assert list(mask.opset_import) == list(encoder.opset_import)


def test_on_gpus_encoder_and_decoder_run_there_and_the_mask_does_not(bundle: Path, tmp_path: Path):
    write_repository(bundle, tmp_path / "triton", "gpu", 32)
    kinds = {
        name: [g.kind for g in read_config(tmp_path / "triton" / name).instance_group] for name in GRAPHS
    }
    gpu, cpu = [ModelInstanceGroup.KIND_GPU], [ModelInstanceGroup.KIND_CPU]
    assert kinds == {"tiny": gpu, "tiny-mask": cpu, "tiny-decoder": gpu}
    config = read_config(tmp_path / "triton" / "tiny")
    assert config.parameters["cudnn_conv_algo_search"].string_value == "1"
    [accelerator] = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert (accelerator.name, dict(accelerator.parameters)) == ("cuda", {"use_tf32": "0"})


def test_everything_runs_on_cpus_unless_asked(repository: Path):
    for name in GRAPHS:
        config = read_config(repository / name)
        assert [group.kind for group in config.instance_group] == [ModelInstanceGroup.KIND_CPU]
        assert not config.parameters
        assert not config.HasField("optimization")


def test_a_second_version_joins_the_first_and_takes_the_ensemble(repository: Path, bundle: Path):
    first = run_ensemble(repository, "tiny-reconstruct", {"pixels": noise(4)})
    second = write_bundle(bundle.parent / "2", seed=2)
    write_repository(second, repository, "cpu", 32)
    for name in GRAPHS:
        assert version_names(repository / name) == ["1", "2"]
        assert read_config(repository / name).version_policy.HasField("all")
    ensemble = read_config(repository / "tiny-reconstruct")
    assert list(ensemble.version_policy.specific.versions) == [2]
    assert {step.model_version for step in ensemble.ensemble_scheduling.step} == {2}
    now = run_ensemble(repository, "tiny-reconstruct", {"pixels": noise(4)})
    assert np.abs(now["reconstruction"] - first["reconstruction"]).max() > 0.01


def test_an_older_version_leaves_the_ensemble_at_the_newest(tmp_path: Path):
    for version in (2, 1):
        bundle = write_bundle(tmp_path / "models" / "tiny" / str(version), seed=version)
        written = write_repository(bundle, tmp_path / "triton", "cpu", 32)
        assert (written.version, written.ensemble_version) == (version, 2)
    ensemble = read_config(tmp_path / "triton" / "tiny-reconstruct")
    assert list(ensemble.version_policy.specific.versions) == [2]


def test_two_exports_at_once_leave_the_ensemble_at_the_newest(
    repository: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
):
    """Version 3 comes while version 2 is being moved into the repository: it waits, or it has finished."""
    second, third = (write_bundle(bundle.parent / str(version), seed=version) for version in (2, 3))
    is_moving, came, rename, flock = Event(), Event(), Path.rename, fcntl.flock

    def tell_and_lock(*arguments) -> None:
        came.set()
        flock(*arguments)

    with ThreadPoolExecutor(max_workers=1) as other:
        exports: list[Future[object]] = []

        def rename_while_another_comes(path: Path, target: Path) -> Path:
            if not is_moving.is_set():
                is_moving.set()
                came.clear()
                exports.append(other.submit(write_repository, third, repository, "cpu", 32))
                exports[0].add_done_callback(lambda _: came.set())
                came.wait()
            return rename(path, target)

        monkeypatch.setattr(fcntl, "flock", tell_and_lock)
        monkeypatch.setattr(Path, "rename", rename_while_another_comes)
        write_repository(second, repository, "cpu", 32)
        exports[0].result()
    assert version_names(repository / "tiny") == ["1", "2", "3"]
    ensemble = read_config(repository / "tiny-reconstruct")
    assert list(ensemble.version_policy.specific.versions) == [3]
    assert [path.name for path in repository.parent.glob(".*")] == [".triton.lock"]


def test_a_version_without_explain_graph_configures_that_of_the_others(tmp_path: Path):
    bundle, out = shutil.copytree(SHIPPED, tmp_path / SHIPPED.parent.name / "1"), tmp_path / "triton"
    write_repository(bundle, out, "cpu", 32)
    second = shutil.copytree(bundle, bundle.parent / "2")
    graphs = read_manifest(second).graphs
    rewrite_manifest(second, graphs={role: graph for role, graph in graphs.items() if role != "explain"})
    written = write_repository(second, out, "gpu", 64)
    name = f"{SHIPPED.parent.name}-explain"
    assert name not in written.models
    assert version_names(out / name) == ["1"]
    config = read_config(out / name)
    assert config.max_batch_size == 64
    assert [group.kind for group in config.instance_group] == [ModelInstanceGroup.KIND_GPU]
    write_repository(bundle, out, "gpu", 64)
    assert read_config(out / name) == config, "as if the version with the graph had been written so"


def test_the_same_export_again_changes_no_file(repository: Path, bundle: Path):
    before = snapshot(repository, times=True)
    write_repository(bundle, repository, "cpu", 32)
    assert snapshot(repository, times=True) == before


def test_another_device_rewrites_the_configuration_and_no_graph(repository: Path, bundle: Path):
    before = snapshot(repository)
    write_repository(bundle, repository, "gpu", 32)
    after = snapshot(repository)
    changed = {str(path) for path in after if after[path] != before.get(path)}
    assert changed == {"tiny/config.pbtxt", "tiny-decoder/config.pbtxt"}
    assert after.keys() == before.keys()


def test_other_models_of_the_repository_stay_as_they_are(repository: Path, tmp_path: Path):
    before = snapshot(repository)
    write_repository(write_bundle(tmp_path / "models" / "other" / "7"), repository, "gpu", 8)
    after = snapshot(repository)
    assert {path: after[path] for path in before} == before
    assert version_names(repository / "other-decoder") == ["7"]


def test_a_bundle_without_decoder_makes_the_encoder_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    bundle = write_bundle(tmp_path / "models" / "tiny" / "1", decoder=False)
    main(["triton", str(bundle), "--out", str(tmp_path / "triton")])
    assert [path.name for path in (tmp_path / "triton").iterdir()] == ["tiny"]
    assert read_config(tmp_path / "triton" / "tiny").name == "tiny"
    assert f"{bundle} has no decoder: no ensemble" in capsys.readouterr().out


def test_a_version_without_decoder_cannot_join_an_ensemble(repository: Path, bundle: Path):
    second = write_bundle(bundle.parent / "2", decoder=False)
    with unchanged(repository), pytest.raises(ValueError, match=r"version 2 has no decoder, but .* holds"):
        write_repository(second, repository, "cpu", 8)


def test_a_version_of_other_shapes_is_refused(repository: Path, bundle: Path):
    second = write_bundle(bundle.parent / "2", pose_shape=(8,))
    with unchanged(repository), pytest.raises(ValueError, match="one configuration for all versions"):
        write_repository(second, repository, "cpu", 32)


def test_a_version_of_other_classes_is_refused(repository: Path, bundle: Path):
    second = write_bundle(bundle.parent / "2", classes=("a", "b", "c"))
    with unchanged(repository), pytest.raises(ValueError, match="other tensors or class names"):
        write_repository(second, repository, "cpu", 32)


def test_a_version_that_is_there_is_never_replaced(repository: Path, tmp_path: Path):
    impostor = write_bundle(tmp_path / "elsewhere" / "tiny" / "1", seed=9)
    with unchanged(repository), pytest.raises(ValueError, match="a version never changes"):
        write_repository(impostor, repository, "cpu", 32)


def test_a_model_of_somebody_else_is_never_touched(repository: Path, bundle: Path):
    (repository / "tiny-decoder" / "config.pbtxt").write_text('name: "tiny-decoder"\nbackend: "python"\n')
    with unchanged(repository), pytest.raises(ValueError, match="was not written by capsnet-export triton"):
        write_repository(bundle, repository, "gpu", 32)


def test_a_folder_of_other_things_is_refused(bundle: Path, tmp_path: Path):
    home = tmp_path / "home"
    (home / "photos").mkdir(parents=True)
    with unchanged(home), pytest.raises(ValueError, match="is not empty and no Triton model repository"):
        write_repository(bundle, home, "cpu", 32)


def test_nothing_is_written_into_a_published_version(bundle: Path):
    with unchanged(bundle), pytest.raises(BundleError, match="is in a published version"):
        write_repository(bundle, bundle / "triton", "cpu", 32)


def test_an_empty_folder_and_missing_parents_will_do(bundle: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "empty", tmp_path / "a" / "b"):
        write_repository(bundle, out, "cpu", 32)
        assert len(list(out.iterdir())) == 4
        hidden = {path.name for path in out.parent.iterdir() if path.name.startswith(".")}
        assert hidden == {f".{out.name}.lock"}


def test_an_empty_volume_holds_the_lock_and_the_repository(bundle: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "volume")
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / ".volume.lock").touch()  # of an export that failed
    write_repository(bundle, tmp_path / "volume", "cpu", 32)
    assert len(version_names(tmp_path / "volume")) == 4
    assert [path.name for path in (tmp_path / "volume").glob(".*")] == [".volume.lock"]


def test_the_lock_of_another_user_can_be_opened(repository: Path):
    assert (repository.parent / ".triton.lock").stat().st_mode & 0o666 == 0o666


def test_what_is_written_can_be_read_by_everybody(repository: Path):
    for path in repository.rglob("*"):
        assert path.stat().st_mode & 0o444 == 0o444, path
        assert not path.is_dir() or path.stat().st_mode & 0o111 == 0o111, path


@pytest.mark.parametrize("model", ["tiny", "tiny-mask", "tiny-decoder", "tiny-reconstruct"])
def test_a_failed_move_leaves_a_repository_as_it_was(repository: Path, bundle: Path, model: str):
    second = write_bundle(bundle.parent / "2", seed=2)
    (repository / model / "2").symlink_to("nowhere")  # looks absent, and no folder can be renamed to it
    with unchanged(repository), pytest.raises(OSError, match="Not a directory"):
        write_repository(second, repository, "cpu", 32)
    assert [path.name for path in repository.parent.iterdir() if path.name.endswith(".partial")] == []


def test_a_failed_configuration_leaves_a_repository_as_it_was(
    repository: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
):
    second = write_bundle(bundle.parent / "2", seed=2)
    replace = Path.replace

    def replace_on_a_failing_disk(path: Path, target: Path) -> Path:
        if target.parent.name == "tiny-reconstruct":
            raise OSError("input/output error")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", replace_on_a_failing_disk)
    with unchanged(repository), pytest.raises(OSError, match="input/output error"):
        write_repository(second, repository, "gpu", 32)


def test_a_failed_move_leaves_no_new_repository(bundle: Path, tmp_path: Path):
    out = tmp_path / "triton"
    out.mkdir()
    (out / "tiny-decoder").symlink_to("nowhere")
    (out / "other").mkdir()
    (out / "other" / "config.pbtxt").write_text('name: "other"\n')
    with unchanged(out), pytest.raises(OSError, match="Not a directory"):
        write_repository(bundle, out, "cpu", 32)


@pytest.mark.parametrize("file", ["encoder.onnx", "decoder.onnx", "samples.npz", "manifest.json"])
def test_a_broken_bundle_writes_nothing(
    bundle: Path, tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
):
    content = (bundle / file).read_bytes()
    (bundle / file).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert f"{bundle / file}" in fails_with(
        ["triton", str(bundle), "--out", str(tmp_path / "triton")], capsys
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models"]


def test_samples_that_disagree_are_refused(bundle: Path):
    replace_file(bundle, "samples", samples_with(bundle, lambda poses: poses + 1, "poses"))
    with pytest.raises(BundleError, match=r"samples: poses differs by 1 on cpu; at most 0\.0001 is allowed"):
        read_bundle(bundle)


@pytest.mark.parametrize("role", ["encoder", "decoder"])
def test_a_graph_that_gives_no_numbers_is_refused(bundle: Path, role: str):
    model = onnx.load(bundle / f"{role}.onnx")
    weights = next(tensor for tensor in model.graph.initializer if tensor.name == "weights")
    weights.CopyFrom(numpy_helper.from_array(np.nan * numpy_helper.to_array(weights), "weights"))
    replace_file(bundle, role, model.SerializeToString())
    with pytest.raises(BundleError, match=r"samples: .* differs by nan"):
        read_bundle(bundle)


@pytest.mark.parametrize("role", ["encoder", "decoder"])
def test_a_graph_that_cannot_be_loaded_is_refused(bundle: Path, role: str):
    replace_file(bundle, role, of_unknown_operator(bundle, role))
    with pytest.raises(BundleError, match=f"the {role} cannot be run: .*Nonsense"):
        read_bundle(bundle)


def test_a_graph_that_is_no_onnx_is_refused(bundle: Path):
    replace_file(bundle, "decoder", b"\xff\xff not a graph")
    with pytest.raises(BundleError, match=r"decoder.onnx is no ONNX graph"):
        read_bundle(bundle)


def test_a_graph_of_other_shapes_than_the_manifests_is_refused(bundle: Path, tmp_path: Path):
    other = write_bundle(tmp_path / "models" / "other" / "1", pose_shape=(8,))
    replace_file(bundle, "decoder", (other / "decoder.onnx").read_bytes())
    with pytest.raises(BundleError, match=r"decoder.onnx has the inputs .*8.*; the manifest says .*4"):
        read_bundle(bundle)


def test_a_manifest_of_other_shapes_than_its_classes_need_is_refused(bundle: Path):
    rewrite_manifest(bundle, class_names=("0", "1"))
    with pytest.raises(BundleError, match=r"manifest: the encoder has .*; with these classes it needs"):
        read_bundle(bundle)


def test_a_graph_with_weights_in_other_files_is_refused(bundle: Path):
    model = onnx.load(bundle / "encoder.onnx")
    onnx.external_data_helper.convert_model_to_external_data(model, location="weights", size_threshold=0)
    for tensor in model.graph.initializer:
        onnx.external_data_helper.set_external_data(tensor, location="weights")
        tensor.data_location = onnx.TensorProto.EXTERNAL
    replace_file(bundle, "encoder", model.SerializeToString())
    with pytest.raises(BundleError, match=r"encoder.onnx keeps tensors in other files"):
        read_bundle(bundle)


def test_a_folder_that_is_no_version_is_refused(bundle: Path, tmp_path: Path):
    moved = shutil.copytree(bundle, tmp_path / "bundle")
    with pytest.raises(ValueError, match="'bundle' is no version"):
        read_bundle(moved)


def test_a_link_is_the_version_that_it_is_called(bundle: Path, tmp_path: Path):
    """The service takes it for that version, too."""
    stored = bundle.rename(tmp_path / "stored")
    (bundle.parent / "9").symlink_to(stored)
    assert read_bundle(bundle.parent / "9").version == 9
    assert read_bundle(bundle.parent / ".." / "tiny" / "9").version == 9


def test_a_models_folder_stands_for_its_newest_version(bundle: Path, tmp_path: Path):
    write_bundle(bundle.parent / "12", seed=12)
    main(["triton", str(bundle.parent), "--out", str(tmp_path / "triton")])
    assert version_names(tmp_path / "triton" / "tiny") == ["12"]


@pytest.mark.parametrize("images", ["0", "2147483648"])
def test_a_batch_that_triton_cannot_have_is_refused(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], images: str
):
    arguments = ["triton", str(bundle), "--out", str(tmp_path / "triton"), "--max-batch", images]
    assert f"max batch must be 1 to 2147483647 images, got {images}" in fails_with(arguments, capsys)


def test_the_command_runs_without_torch(bundle: Path, tmp_path: Path):
    arguments = ["triton", str(bundle), "--out", str(tmp_path / "triton")]
    code = f"import sys; sys.modules['torch'] = None; from export.cli import main; main({arguments})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(list((tmp_path / "triton").iterdir())) == 4


def run_ensemble(repository: Path, name: str, tensors: Tensors) -> Tensors:
    """What Triton's ensemble scheduler does: each step runs once its inputs are there."""
    config = read_config(repository / name)
    assert all(len(values) <= config.max_batch_size for values in tensors.values())
    known, steps = dict(tensors), list(config.ensemble_scheduling.step)
    while steps:
        step = next(step for step in steps if set(step.input_map.values()) <= known.keys())
        steps.remove(step)
        path = repository / step.model_name / str(step.model_version) / "model.onnx"
        feeds = {inside: known[outside] for inside, outside in step.input_map.items()}
        outputs = list(step.output_map)
        values = open_graph(path.read_bytes()).run(outputs, feeds)
        known |= {step.output_map[output]: value for output, value in zip(outputs, values, strict=True)}
    return {output.name: known[output.name] for output in config.output}


def service_answers(bundle: Path, pixels: np.ndarray) -> Tensors:
    """What the service makes of the pixels: encode, take the most probable class, decode."""
    engine = load_engine(
        bundle, bundle.parent.name, EngineOptions("cpu", 32, Path(os.environ["CAPSNET_CACHE"]))
    )
    probabilities, poses = engine.encode(pixels)
    mask = one_hot(probabilities.argmax(axis=1), engine.manifest)
    (reconstruction,) = engine.decode(poses, mask)
    return {"probabilities": probabilities, "poses": poses, "reconstruction": reconstruction}


def read_config(folder: Path) -> ModelConfig:
    """As Triton reads it: a field that it does not know is an error, and the name must be the folder's."""
    config = text_format.Parse((folder / "config.pbtxt").read_text(), ModelConfig())
    assert config.name == folder.name
    return config


def dims(tensors) -> dict[str, list[int]]:
    return {tensor.name: list(tensor.dims) for tensor in tensors}


def sizes_without_batch(values) -> dict[str, list[int]]:
    sizes = {}
    for value in values:
        batch, *rest = value.type.tensor_type.shape.dim
        assert batch.dim_param
        sizes[value.name] = [size.dim_value for size in rest]
    return sizes


def open_graph(content: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def noise(images: int) -> np.ndarray:
    return np.random.default_rng(images).random((images, SIDE, SIDE, 1), np.float32)


def version_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def snapshot(folder: Path, *, times: bool = False) -> dict[Path, object]:
    """Every path below the folder, with the bytes of its file, and when it was last changed."""
    return {
        path.relative_to(folder): (
            path.read_bytes() if path.is_file() else None,
            path.lstat().st_mtime_ns if times else None,
        )
        for path in folder.rglob("*")
    }


@contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    before = snapshot(folder)
    yield
    assert snapshot(folder) == before


def fails_with(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the command ends with."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err
