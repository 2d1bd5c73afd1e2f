"""A graph on a GPU: a few batch sizes, each with buffers of its own and, on CUDA, its launches recorded.

A capsule network runs some sixty small kernels, and at small batches a GPU finishes each before the next one
is launched. A CUDA graph records the launches of one run and repeats them all at once, but it repeats them
exactly: same shapes, same addresses. So batches are padded to one of a few sizes (1, 2, 4 and so on), and
every size has its own input and output buffers. The padding rows are left over from the last batch; rows do
not mix, and the padding's outputs are cut off. A size that fails is padded to the next: cuDNN 9.19 on an
H200 has a convolution in half precision for 4 and for 32 MNIST images, but none for 8 and 16.

Two rules of ONNX Runtime (core/providers/cuda/cuda_graph.cc) shape the rest. A recording belongs to the
thread that made it and is made anew for any other, so a session has its own thread. And during a recording
nothing else in the process may use the GPU: if another thread allocated, copied or freed memory, it would
spoil the recording and fail itself. `Gpu` prevents that. A session that is no longer used is closed, because
its last reference may go at any moment.
"""

import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from traceback import clear_frames
from typing import Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from service.inference.providers import DeviceError

# N images

Floats = NDArray[np.float32]
Memory = Literal["cpu", "cuda"]  # where buffers are; "cuda" for TensorRT, too

GRAPH_ID = "gpu_graph_id"  # the run option that names the recording
NO_RECORDING = -1
FATAL, WARNING = 4, 2  # ONNX Runtime's severities; it begins with the latter
SHOWN_OF_AN_ERROR = 300  # characters
REPEAT_TOLERANCE = 1e-4  # between two runs of the same; sums may be taken in another order

log = logging.getLogger(__name__)


class Gpu:
    """A lock on the GPU: many users at a time, or one that records."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._users = 0
        self._recorders = 0  # that record or wait for it; they go before new users

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Use the GPU together with others."""
        with self._changed:
            self._changed.wait_for(lambda: not self._recorders)
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Use the GPU while nobody else does."""
        with self._changed:
            self._recorders += 1
            try:
                self._changed.wait_for(lambda: not self._users)
                yield  # with the lock held: others wait
            finally:
                self._recorders -= 1
                self._changed.notify_all()


# One for the process: CUDA's rule is about the whole process, too.
GPU = Gpu()


def batch_sizes(largest: int) -> list[int]:
    """The sizes that batches are padded to: powers of two, and the largest batch itself."""
    sizes = [1 << power for power in range(largest.bit_length())]
    return [size for size in sizes if size < largest] + [largest]


class GpuSession:
    """A session that runs a graph at a few batch sizes, called like one of ONNX Runtime.

    Args:
        session: the graph on its provider, made while `GPU` was held. Its inputs and outputs are float32.
        largest: maximum images per run.
        memory: where the provider's buffers are.
        records: whether the provider was told to make CUDA graphs.

    Attributes:
        warning: why it is slower than it could be; "" if it is not.
    """

    def __init__(self, session: ort.InferenceSession, largest: int, memory: Memory, *, records: bool) -> None:
        self.warning = ""
        self._sizes = batch_sizes(largest)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gpu")
        self._slots = self._thread.submit(self._make_slots, session, memory, records).result()
        self._sizes = [slot.size for slot in self._slots]

    def run(self, names: Sequence[str], feeds: Mapping[str, Floats]) -> list[Floats]:
        """Outputs [N, ...] of these names, from inputs [N, ...] by name; N is `largest` at most."""
        return self._thread.submit(self._run, names, feeds).result()

    def close(self) -> None:
        """Free its memory on the GPU after its current run, while nobody records; does not wait."""
        try:
            self._thread.submit(self._free)
        except RuntimeError:  # it is closed already
            return
        self._thread.shutdown(wait=False)

    def _free(self) -> None:
        with GPU.shared():
            self._slots.clear()  # nobody else holds the session

    def _make_slots(self, session: ort.InferenceSession, memory: Memory, records: bool) -> list["Slot"]:
        """A slot for every size that runs, warmed up; in the session's thread, as all that follows."""
        slots: list[Slot] = []
        first: list[list[Floats]] = []
        # The largest first: its scratch memory serves the smaller ones, too.
        for number, size in reversed(list(enumerate(self._sizes, start=1))):
            with GPU.shared():
                slot = Slot(session, size, memory, number if records else NO_RECORDING)
                try:
                    slot.warm_up()
                except Exception as error:  # ONNX Runtime's errors share no base class
                    if not slots:
                        raise
                    self._note_padding(size, slots[0].size, error)
                    del slot  # while nobody records
                    continue
            # The first run with a number warms up, records and repeats the recording.
            with GPU.exclusive() if records else GPU.shared():
                slot.run()
                first.insert(0, slot.read(slot.outputs, size))
            slots.insert(0, slot)
        if records:
            _check_recordings(slots, first)
        return slots

    def _note_padding(self, size: int, padded: int, error: Exception) -> None:
        """In the log and in `/readyz`; a size that fails may be a fault of the runtime, or of the device."""
        reason = str(error).partition("\n")[0][:SHOWN_OF_AN_ERROR]
        self.warning += f"{'; ' if self.warning else ''}batches of {size} images are padded to {padded}"
        log.warning("batches of %d images are padded to %d, as they fail: %s", size, padded, reason)

    def _run(self, names: Sequence[str], feeds: Mapping[str, Floats]) -> list[Floats]:
        images = len(next(iter(feeds.values())))
        assert images <= self._sizes[-1]
        slot = self._slots[bisect_left(self._sizes, images)]
        with GPU.shared():
            slot.fill(feeds, images)
            slot.run()
            return slot.read(names, images)


def _check_recordings(slots: Sequence["Slot"], first: Sequence[Sequence[Floats]]) -> None:
    """Check that recordings still work after later ones, for which a provider may have freed their memory.

    Args:
        slots: all of a session.
        first: what each gave when it was recorded, all its outputs.
    """
    for slot, expected in zip(slots, first, strict=True):
        with GPU.shared():
            slot.run()
            found = slot.read(slot.outputs, slot.size)
        for name, before, now in zip(slot.outputs, expected, found, strict=True):
            if not np.allclose(before, now, atol=REPEAT_TOLERANCE, rtol=0):
                raise RuntimeError(f"{name} of {slot.size} images is no longer what was recorded")


def open_gpu_session(
    create: Callable[..., ort.InferenceSession], largest: int, *, records: bool, memory: Memory = "cuda"
) -> GpuSession:
    """A session with CUDA graphs; if they fail one without, with a warning that is also in the log.

    Args:
        create: makes the session; told by `records` whether the provider is to make CUDA graphs.
        largest: images per run.
        records: whether to try CUDA graphs.
        memory: where the provider's buffers are.

    Raises:
        DeviceError: memory on the device is not available, or a run fails on it; or what `create` raises.
    """
    if not records:
        return _open(create, largest, memory, records=False)
    try:
        return _open(create, largest, memory, records=True)
    except Exception as error:  # any: the second try shows whether recording is the cause
        reason = str(error)
    # Only here is the memory of the first try free again.
    session = _open(create, largest, memory, records=False)
    warning = f"no CUDA graphs, so small batches are slower: {reason}"
    session.warning = "; ".join(filter(None, (warning, session.warning)))
    log.warning("%s", warning)
    return session


def _open(
    create: Callable[..., ort.InferenceSession], largest: int, memory: Memory, *, records: bool
) -> GpuSession:
    with GPU.shared():
        try:
            session = create(records=records)
        except Exception as error:
            _release_frames(error)
            raise
    try:
        return GpuSession(session, largest, memory, records=records)
    except Exception as error:  # ONNX Runtime's errors share no base class
        with GPU.shared():
            del session
            _release_frames(error)
        sizes = f"1 to {largest} images (CAPSNET_MAX_BATCH)"
        raise DeviceError(f"its first runs, of {sizes}, failed on the GPU: {error}") from error


def _release_frames(error: BaseException | None) -> None:
    """Free what an error's frames hold, such as a session, now and not when the error is collected."""
    while error:
        clear_frames(error.__traceback__)
        error = error.__cause__


def _options(number: int) -> ort.RunOptions:
    options = ort.RunOptions()
    options.add_run_config_entry(GRAPH_ID, str(number))
    return options


class Slot:
    """The buffers of one batch size, bound to the session for good.

    Args:
        session: whose inputs and outputs they are.
        size: images, N in all shapes.
        memory: where the buffers are.
        number: of the CUDA graph, at least 1; or NO_RECORDING.

    Attributes:
        outputs: their names.
    """

    def __init__(self, session: ort.InferenceSession, size: int, memory: Memory, number: int) -> None:
        def buffer(shape: Sequence[int | str | None]) -> ort.OrtValue:
            sizes = [size if axis == 0 else length for axis, length in enumerate(shape)]
            return ort.OrtValue.ortvalue_from_shape_and_type(sizes, np.float32, memory)

        self.size = size
        self._inputs = {node.name: buffer(node.shape) for node in session.get_inputs()}
        self._outputs = {node.name: buffer(node.shape) for node in session.get_outputs()}
        self.outputs = tuple(self._outputs)
        noise = np.random.default_rng(0)
        self._staged = {name: noise.random(value.shape(), np.float32) for name, value in self._inputs.items()}
        for name, values in self._staged.items():
            self._inputs[name].update_inplace(values)
        self._binding = session.io_binding()
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in self._outputs.items():
            self._binding.bind_ortvalue_output(name, value)
        self._session, self._options, self._unrecorded = session, _options(number), _options(NO_RECORDING)

    def fill(self, feeds: Mapping[str, Floats], images: int) -> None:
        """Put arrays [images, ...] into the inputs; rows after them keep what they had."""
        for name, feed in feeds.items():
            if images < self.size or not feed.flags.c_contiguous:
                self._staged[name][:images] = feed
                feed = self._staged[name]
            self._inputs[name].update_inplace(feed)

    def warm_up(self) -> None:
        """Run without a recording, during which memory cannot be allocated.

        The first run shows what memory is needed, the second one allocates it. What cuDNN tries in vain is
        not logged: it would be an error even where the next try succeeds.
        """
        ort.set_default_logger_severity(FATAL)
        try:
            for _ in range(2):
                self._session.run_with_iobinding(self._binding, self._unrecorded)
            self._binding.synchronize_outputs()
        finally:
            ort.set_default_logger_severity(WARNING)

    def run(self) -> None:
        """Compute the outputs, and wait until they are there."""
        self._session.run_with_iobinding(self._binding, self._options)
        self._binding.synchronize_outputs()

    def read(self, names: Sequence[str], images: int) -> list[Floats]:
        """Copies of the first rows of these outputs."""
        return [self._outputs[name].numpy()[:images].copy() for name in names]
