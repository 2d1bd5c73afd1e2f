"""Sessions with fixed buffers: padding is never seen, addresses stay, and recording is done alone.

All but the tests marked `gpu` keep the buffers in the CPU's memory, where the same code runs.
"""

import threading
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export.contract.manifest import newest_version, read_manifest
from export.optimize.half_precision import halved
from service.inference.engine import Engine
from service.inference.gpu_session import (
    GPU,
    GRAPH_ID,
    NO_RECORDING,
    Gpu,
    GpuSession,
    Slot,
    batch_sizes,
    open_gpu_session,
)
from service.inference.providers import PROVIDERS, DeviceError, cuda_options, load_libraries
from service.inference.session_pool import pool_of_one
from tests.support.tiny_bundle import SIDE, decoder_model, encoder_model, write_bundle

OUTPUTS = ["probabilities", "poses"]


def plain_session(model=None) -> ort.InferenceSession:
    model = model or encoder_model(np.random.default_rng(0), 3, 4)
    return ort.InferenceSession(model.SerializeToString(), providers=[PROVIDERS["cpu"]])


def pixels(images: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((images, SIDE, SIDE, 1), np.float32)


@pytest.fixture(scope="module")
def session() -> GpuSession:
    return GpuSession(plain_session(), 8, "cpu", records=False)


@pytest.fixture(scope="module")
def plain() -> ort.InferenceSession:
    return plain_session()


@given(st.integers(1, 4096))
def test_batch_sizes_grow_to_the_largest_and_never_waste_more_than_half(largest):
    sizes = batch_sizes(largest)
    assert sizes[0] == 1
    assert sizes[-1] == largest
    assert all(before < after <= 2 * before for before, after in pairwise(sizes))


@pytest.mark.parametrize("images", [0, 1, 2, 3, 5, 7, 8])
def test_any_number_of_images_gives_what_the_plain_session_gives(session, plain, images):
    feeds = {"pixels": pixels(images)}
    for found, expected in zip(session.run(OUTPUTS, feeds), plain.run(OUTPUTS, feeds), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


@settings(max_examples=25)
@given(st.lists(st.integers(1, 8), min_size=2, max_size=6))
def test_what_ran_before_never_shows(session, plain, batches):
    for seed, images in enumerate(batches):
        feeds = {"pixels": pixels(images, seed)}
        found, expected = session.run(OUTPUTS, feeds), plain.run(OUTPUTS, feeds)
        np.testing.assert_allclose(found[1], expected[1], atol=1e-6)


def test_results_stay_when_the_buffers_are_used_again(session):
    first = session.run(OUTPUTS, {"pixels": pixels(4, seed=1)})
    kept = [output.copy() for output in first]
    session.run(OUTPUTS, {"pixels": pixels(4, seed=2)})
    for output, before in zip(first, kept, strict=True):
        np.testing.assert_array_equal(output, before)


def test_the_callers_arrays_are_left_alone(session):
    given_pixels = pixels(3)
    before = given_pixels.copy()
    session.run(OUTPUTS, {"pixels": given_pixels})
    session.run(OUTPUTS, {"pixels": pixels(3, seed=5)})
    np.testing.assert_array_equal(given_pixels, before)


def test_arrays_that_do_not_lie_in_order_are_read_as_what_they_are(session, plain):
    turned = pixels(4).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(
        session.run(OUTPUTS, {"pixels": turned})[1],
        plain.run(OUTPUTS, {"pixels": np.ascontiguousarray(turned)})[1],
        atol=1e-6,
    )


def test_outputs_come_in_the_order_they_are_asked_for(session, plain):
    feeds = {"pixels": pixels(2)}
    (poses,) = session.run(["poses"], feeds)
    assert poses.shape == (2, 3, 4)
    assert [output.shape for output in session.run(OUTPUTS[::-1], feeds)] == [(2, 3, 4), (2, 3)]


def test_a_graph_of_two_inputs_runs():
    model = decoder_model(np.random.default_rng(0), 3, 4)
    feeds = {
        "poses": np.random.default_rng(1).random((5, 3, 4), np.float32),
        "mask": np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1]],
    }
    found = GpuSession(plain_session(model), 8, "cpu", records=False).run(["reconstruction"], feeds)
    np.testing.assert_allclose(found[0], plain_session(model).run(None, feeds)[0], atol=1e-6)


def test_a_slots_addresses_are_the_same_after_every_run():
    slot = Slot(plain_session(), 4, "cpu", NO_RECORDING)

    def addresses() -> list[int]:
        return [value.data_ptr() for value in (*slot._inputs.values(), *slot._outputs.values())]

    before = addresses()
    for images in (4, 1, 3):
        slot.fill({"pixels": pixels(images)}, images)
        slot.run()
        assert addresses() == before


def test_every_run_is_on_the_sessions_own_thread():
    seen = set()

    class Watched:
        """A session that notes who runs it."""

        def __init__(self) -> None:
            self._inside = plain_session()

        def __getattr__(self, name):
            if name == "run_with_iobinding":
                seen.add(threading.get_ident())
            return getattr(self._inside, name)

    session = GpuSession(Watched(), 4, "cpu", records=False)
    callers = [
        threading.Thread(target=session.run, args=[OUTPUTS, {"pixels": pixels(images)}])
        for images in (1, 2, 3)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(seen) == 1
    assert seen.isdisjoint({threading.get_ident(), *(caller.ident for caller in callers)})


def test_a_session_that_is_no_longer_used_takes_its_thread_with_it():
    before = set(threading.enumerate())
    session = GpuSession(plain_session(), 2, "cpu", records=False)
    (thread,) = set(threading.enumerate()) - before
    del session
    thread.join(10)
    assert not thread.is_alive()


class Dropped:
    """A session that notes when it goes, and whether the GPU was held then.

    Args:
        seen: gets True or False when it goes.
    """

    def __init__(self, seen: list[bool]) -> None:
        self._inside, self._seen = plain_session(), seen

    def __getattr__(self, name):
        return getattr(self._inside, name)

    def __del__(self) -> None:
        self._seen.append(GPU._users > 0)


def test_a_closed_session_is_freed_once_nobody_records():
    freed = []
    session = GpuSession(Dropped(freed), 2, "cpu", records=False)
    (thread,) = session._thread._threads
    with GPU.exclusive():
        session.close()
        thread.join(0.1)
        assert freed == []
    thread.join(10)
    assert freed == [True]
    assert not thread.is_alive()


def test_a_session_may_be_closed_twice_and_does_not_run_any_more():
    session = GpuSession(plain_session(), 2, "cpu", records=False)
    session.close()
    session.close()
    with pytest.raises(RuntimeError):
        session.run(OUTPUTS, {"pixels": pixels(1)})


def test_an_engine_closes_the_sessions_of_both_its_graphs(tmp_path):
    freed = []
    encoder, decoder = (GpuSession(Dropped(freed), 2, "cpu", records=False) for _ in range(2))
    manifest = read_manifest(write_bundle(tmp_path / "tiny" / "1"))
    Engine(manifest, "cuda", 2, 2, 1, pool_of_one(encoder), decoder).close()
    for session in (encoder, decoder):
        session._thread.shutdown(wait=True)
    assert freed == [True, True]


def test_an_engine_says_once_why_its_graphs_are_slower(tmp_path):
    encoder, decoder = (GpuSession(plain_session(), 2, "cpu", records=False) for _ in range(2))
    manifest = read_manifest(write_bundle(tmp_path / "tiny" / "1"))
    engine = Engine(manifest, "cuda", 2, 2, 1, pool_of_one(encoder), decoder)
    assert engine.warnings == []
    encoder.warning = decoder.warning = "no CUDA graphs"
    assert engine.warnings == ["no CUDA graphs"]


@pytest.mark.skipif(PROVIDERS["cuda"] in ort.get_available_providers(), reason="there is a CUDA provider")
def test_what_a_session_that_cannot_be_opened_has_taken_is_freed_while_the_gpu_is_held():
    freed = []
    with pytest.raises(DeviceError) as raised:
        open_gpu_session(lambda records: Dropped(freed), 4, records=True)
    assert freed == [True, True]  # with CUDA graphs and without, though the error is still at hand
    assert "failed on the GPU" in str(raised.value)


def test_what_a_session_that_cannot_be_made_has_taken_is_freed_while_the_gpu_is_held():
    freed = []

    def create(records: bool) -> ort.InferenceSession:
        session = Dropped(freed)
        try:
            session.run(["no such output"], {})
        except ValueError as error:
            raise DeviceError("no device") from error

    with pytest.raises(DeviceError):
        open_gpu_session(create, 4, records=False)
    assert freed == [True]


class Forgetful:
    """A session whose outputs are lost once every size has been recorded."""

    def __init__(self) -> None:
        self._inside, self.numbers = plain_session(), []

    def run_with_iobinding(self, binding, options) -> None:
        self._inside.run_with_iobinding(binding, options)
        self.numbers.append(int(options.get_run_config_entry(GRAPH_ID)))
        if sum(number != NO_RECORDING for number in self.numbers) > len(batch_sizes(4)):
            for value in binding.get_outputs():
                value.update_inplace(np.zeros(value.shape(), np.float32))

    def __getattr__(self, name):
        return getattr(self._inside, name)


def test_a_recording_that_does_not_outlive_the_next_ones_is_found_out():
    with pytest.raises(RuntimeError, match="of 1 images is no longer what was recorded"):
        GpuSession(Forgetful(), 4, "cpu", records=True)


def test_each_size_runs_twice_before_it_is_recorded():
    """What the first runs allocate would make a recording fail."""
    session = Forgetful()
    with pytest.raises(RuntimeError):
        GpuSession(session, 4, "cpu", records=True)
    numbers = range(len(batch_sizes(4)), 0, -1)
    recorded = [run for number in numbers for run in (NO_RECORDING, NO_RECORDING, number)]
    assert session.numbers[: len(recorded)] == recorded


def test_where_recordings_do_not_last_there_are_none_and_the_log_says_why(plain, caplog):
    def create(*, records: bool):
        return Forgetful() if records else plain_session()

    session = open_gpu_session(create, 4, records=True, memory="cpu")
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith("no CUDA graphs, so small batches are slower: ")
    assert session.warning == warning
    assert "no longer what was recorded" in warning
    for images in (4, 3, 1):
        feeds = {"pixels": pixels(images)}
        np.testing.assert_allclose(session.run(OUTPUTS, feeds)[1], plain.run(OUTPUTS, feeds)[1], atol=1e-6)


def test_a_graph_whose_first_runs_fail_is_an_error_with_and_without_recordings():
    class Failing(Forgetful):
        def run_with_iobinding(self, binding, options) -> None:
            raise RuntimeError("out of memory")

    for records in (False, True):
        with pytest.raises(
            DeviceError, match=r"1 to 4 images \(CAPSNET_MAX_BATCH\), failed on the GPU: out of memory"
        ):
            open_gpu_session(lambda records: Failing(), 4, records=records, memory="cpu")


def test_recordings_that_last_are_used():
    session = GpuSession(plain_session(), 4, "cpu", records=True)
    assert len(session.run(OUTPUTS, {"pixels": pixels(3)})[0]) == 3


def test_feeds_of_another_shape_fail_and_the_session_lives_on(session):
    with pytest.raises(ValueError, match="broadcast"):
        session.run(OUTPUTS, {"pixels": np.zeros((3, SIDE, SIDE - 1, 1), np.float32)})
    assert len(session.run(OUTPUTS, {"pixels": pixels(3)})[0]) == 3


def test_recording_waits_for_the_users_and_keeps_new_ones_out():
    gpu, order = Gpu(), []
    user_may_leave = threading.Event()
    entered = threading.Event()

    def use_first() -> None:
        with gpu.shared():
            entered.set()
            user_may_leave.wait(10)
            order.append("user leaves")

    def record() -> None:
        with gpu.exclusive():
            order.append("recorder")

    def use_later() -> None:
        with gpu.shared():
            order.append("later user")

    threads = [threading.Thread(target=use_first)]
    threads[0].start()
    assert entered.wait(10)
    for work, waiting in ((record, lambda: gpu._recorders == 1), (use_later, lambda: True)):
        threads.append(threading.Thread(target=work))
        threads[-1].start()
        while not waiting():
            time.sleep(0.001)
    user_may_leave.set()
    for thread in threads:
        thread.join(10)
    assert order == ["user leaves", "recorder", "later user"]


def test_a_failure_while_recording_lets_the_others_in_again():
    gpu = Gpu()
    with pytest.raises(ZeroDivisionError), gpu.exclusive():
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), gpu.shared():
        raise ZeroDivisionError
    with gpu.exclusive(), pytest.raises(KeyError):
        raise KeyError
    with gpu.shared(), gpu.shared():
        pass


@pytest.mark.skipif(PROVIDERS["cuda"] in ort.get_available_providers(), reason="there is a CUDA provider")
def test_without_cuda_memory_the_error_says_what_failed():
    with pytest.raises(DeviceError, match=r"1 to 4 images \(CAPSNET_MAX_BATCH\), failed on the GPU: .*CUDA"):
        open_gpu_session(lambda records: plain_session(), 4, records=True)


class FailsAt:
    """A session that cannot run some sizes."""

    def __init__(self, *sizes: int) -> None:
        self._session, self._sizes = plain_session(), sizes

    def run_with_iobinding(self, binding, options):
        if binding.get_outputs()[0].shape()[0] in self._sizes:
            raise RuntimeError("no convolution")
        self._session.run_with_iobinding(binding, options)

    def __getattr__(self, name):
        return getattr(self._session, name)


def test_a_size_that_fails_is_padded_to_the_next(plain, caplog):
    caplog.set_level("INFO")
    session = GpuSession(FailsAt(2, 4), 8, "cpu", records=False)
    for images in (1, 2, 3, 4, 7, 8):
        feeds = {"pixels": pixels(images, seed=images)}
        np.testing.assert_allclose(session.run(OUTPUTS, feeds)[1], plain.run(OUTPUTS, feeds)[1], atol=1e-6)
    assert "batches of 4 images are padded to 8, as they fail: no convolution" in caplog.text
    assert session.warning == "batches of 4 images are padded to 8; batches of 2 images are padded to 8"


def test_the_largest_size_has_to_run():
    with pytest.raises(DeviceError, match="no convolution"):
        open_gpu_session(lambda records: FailsAt(8), 8, records=False, memory="cpu")


def cuda_session(*, records: bool, half: bool = False, content: bytes = b"") -> ort.InferenceSession:
    if PROVIDERS["cuda"] not in ort.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA provider")
    load_libraries("cuda")
    content = content or encoder_model(np.random.default_rng(0), 3, 4).SerializeToString()
    providers = [(PROVIDERS["cuda"], cuda_options(records=records, half=half))]
    return ort.InferenceSession(content, providers=providers, enable_fallback=0)


@pytest.mark.gpu
@pytest.mark.parametrize("records", [False, True])
def test_on_cuda_every_batch_size_gives_what_the_cpu_gives(plain, records):
    session = open_gpu_session(cuda_session, 8, records=records)
    assert not session.warning
    for images in (1, 2, 3, 5, 8, 3, 1):
        feeds = {"pixels": pixels(images, seed=images)}
        found, expected = session.run(OUTPUTS, feeds), plain.run(OUTPUTS, feeds)
        np.testing.assert_allclose(found[1], expected[1], atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("half", [False, True])
def test_the_shipped_encoder_runs_as_cuda_graphs_of_every_size(caplog, half):
    plain = (newest_version(Path("models/capsnet-mnist")) / "encoder.onnx").read_bytes()
    content = halved(plain, "capsnet") if half else plain
    session = open_gpu_session(partial(cuda_session, half=half, content=content), 64, records=True)
    assert "no CUDA graphs" not in caplog.text
    reference = ort.InferenceSession(plain, providers=[PROVIDERS["cpu"]])
    images = pixels(64)
    expected = reference.run(OUTPUTS, {"pixels": images})[0]
    for number in (1, 2, 3, 8, 17, 64, 5, 1):
        found = session.run(OUTPUTS, {"pixels": images[:number]})[0]
        np.testing.assert_allclose(found, expected[:number], atol=5e-3 if half else 1e-3)


@pytest.mark.gpu
def test_two_sessions_record_and_run_side_by_side_on_cuda(plain):
    feeds = {"pixels": pixels(5)}
    expected = plain.run(OUTPUTS, feeds)[1]
    running = open_gpu_session(cuda_session, 8, records=True)
    differences = []

    def keep_running() -> None:
        differences.extend(np.abs(running.run(OUTPUTS, feeds)[1] - expected).max() for _ in range(2000))

    traffic = threading.Thread(target=keep_running)
    traffic.start()
    for _ in range(3):
        recorded = open_gpu_session(cuda_session, 8, records=True)
        assert np.abs(recorded.run(OUTPUTS, feeds)[1] - expected).max() < 1e-3
    traffic.join()
    assert len(differences) == 2000
    assert max(differences) < 1e-3
