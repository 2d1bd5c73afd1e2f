"""The runtimes that throughput.py compares: each opens an encoder and prepares batches of it to run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from export.contract.manifest import Manifest
from export.optimize.half_precision import check_architecture, half_precision
from service.inference.gpu_session import NO_RECORDING, GpuSession, Slot
from service.inference.providers import PROVIDERS, cuda_options, load_libraries, tensorrt_options

# N images, H rows, W columns, C channels, J classes

Floats = NDArray[np.float32]


OTHER_OPTIONS = {  # of the CUDA provider than the service's
    "NHWC": {"prefer_nhwc": "1"},
    "NHWC, fused bias": {"prefer_nhwc": "1", "fuse_conv_bias": "1"},
    "EXHAUSTIVE": {"cudnn_conv_algo_search": "EXHAUSTIVE"},
}


class MissingError(RuntimeError):
    """A contender is not installed, or cannot run here; the message says what to do."""


class Prepared(NamedTuple):
    """A batch that is ready to run again and again.

    Attributes:
        run: computes it and waits for the result.
        probabilities: of the last run, [N, J].
    """

    run: Callable[[], object]
    probabilities: Callable[[], Floats]


Prepare = Callable[[Floats], Prepared]  # takes pixels [N, H, W, C]


@dataclass(frozen=True)
class Setup:
    """What is measured, and on what.

    Attributes:
        device: "cuda" or "cpu".
        encoder: the bundle's graph.
        cache: folder for TensorRT's engines.
        kernels: file that gets a table of each contender's kernels, at the largest batch; needs torch.
    """

    device: str
    batches: Sequence[int]
    seconds: float
    manifest: Manifest
    encoder: onnx.ModelProto
    cache: Path
    kernels: Path | None = None


def contenders(setup: Setup) -> Iterator[tuple[str, Callable[[], Prepare]]]:
    """Names, and what opens each of them or raises MissingError."""
    is_cuda = setup.device == "cuda"
    yield "torch eager float32", partial(open_torch, setup, None)
    yield "torch eager bfloat16", partial(open_torch, setup, "bfloat16")
    if is_cuda:
        yield "torch eager float16", partial(open_torch, setup, "float16")
    yield "torch.compile float32", partial(open_torch, setup, None, compiled=True)
    yield "torch.compile bfloat16", partial(open_torch, setup, "bfloat16", compiled=True)
    for half in (False, True):
        precision = "half" if half else "float32"
        if not is_cuda:
            yield f"ONNX Runtime CPU {precision}", partial(open_cpu, setup, half=half)
            continue
        name = f"ONNX Runtime CUDA {precision}"
        yield name, partial(open_cuda, setup, half=half, records=False)
        yield f"{name}, graphs", partial(open_cuda, setup, half=half, records=True)
        for what, also in OTHER_OPTIONS.items():
            yield f"{name}, graphs, {what}", partial(open_cuda, setup, half=half, records=True, also=also)
    for half in (False, True) if is_cuda else ():
        yield f"TensorRT {'half' if half else 'float32'}", partial(open_tensorrt, setup, half=half)
    for half in (False, True):
        yield f"as served, {'half' if half else 'float32'}", partial(open_served, setup, half=half)


def open_torch(setup: Setup, autocast: str | None, *, compiled: bool = False) -> Prepare:
    """PyTorch with the bundle's weights, channels last; `autocast` names the type of its products."""
    torch = _torch()
    from export.graph import EncoderGraph
    from training.models.cuda.device import use_full_float32

    use_full_float32()
    torch.backends.cudnn.benchmark = True
    model = _torch_model(setup).to(setup.device, memory_format=torch.channels_last)
    eager: Any = EncoderGraph(model).eval()

    def prepare(pixels: Floats) -> Prepared:
        encoder = _compiled(eager, setup) if compiled else eager
        inputs = torch.from_numpy(pixels).to(setup.device)
        outputs: list[Any] = []

        def run() -> None:
            torch.compiler.cudagraph_mark_step_begin()  # the outputs of the run before are done with
            cast = torch.autocast(setup.device, getattr(torch, autocast)) if autocast else nullcontext()
            with torch.inference_mode(), cast:
                outputs[:] = encoder(inputs)
            if setup.device == "cuda":
                torch.cuda.synchronize()

        return Prepared(run, lambda: outputs[0].float().cpu().numpy())

    return prepare


def _compiled(module: Any, setup: Setup) -> Any:
    """Compiled anew for every batch size: after eight of them torch would give up."""
    torch = _torch()
    torch.compiler.reset()
    mode = "reduce-overhead" if setup.device == "cuda" else "default"  # the former makes CUDA graphs
    return torch.compile(module, mode=mode, dynamic=False)


def open_cpu(setup: Setup, *, half: bool) -> Prepare:
    """ONNX Runtime's CPU provider, by the same buffers as on a GPU."""
    return _slots(_session(setup, half=half, providers=[(PROVIDERS["cpu"], {})]), "cpu", records=False)


def open_cuda(setup: Setup, *, half: bool, records: bool, also: dict[str, str] | None = None) -> Prepare:
    """ONNX Runtime's CUDA provider with the service's options for float32, and others beside them."""
    providers = [(PROVIDERS["cuda"], cuda_options(records=records) | (also or {})), (PROVIDERS["cpu"], {})]
    return _slots(_session(setup, half=half, providers=providers), "cuda", records=records)


def open_tensorrt(setup: Setup, *, half: bool) -> Prepare:
    """ONNX Runtime's TensorRT provider with the service's options; builds an engine first."""
    options = tensorrt_options(setup.manifest.graphs["encoder"], max(setup.batches), setup.cache, half=half)
    cuda = (PROVIDERS["cuda"], cuda_options(records=False))
    providers = [(PROVIDERS["tensorrt"], options), cuda, (PROVIDERS["cpu"], {})]
    return _slots(_session(setup, half=half, providers=providers), "cuda", records=False)


def open_served(setup: Setup, *, half: bool) -> Prepare:
    """The session that the service has on this device, with room for every batch: numpy in, numpy out."""
    is_cuda = setup.device == "cuda"
    first = (PROVIDERS["cuda"], cuda_options(records=True, half=half)) if is_cuda else (PROVIDERS["cpu"], {})
    providers = [first, (PROVIDERS["cpu"], {})] if is_cuda else [first]
    session = _session(setup, half=half, providers=providers)
    gpu = GpuSession(session, max(setup.batches), "cuda" if is_cuda else "cpu", records=is_cuda)

    def prepare(pixels: Floats) -> Prepared:
        outputs: list[Floats] = []

        def run() -> None:
            outputs[:] = gpu.run(["probabilities", "poses"], {"pixels": pixels})

        return Prepared(run, lambda: outputs[0])

    return prepare


def _session(
    setup: Setup, *, half: bool, providers: list[tuple[str, dict[str, str]]]
) -> ort.InferenceSession:
    first = providers[0][0]
    if first not in ort.get_available_providers():
        raise MissingError(f"this onnxruntime has no {first}; pip install -e '.[gpu]' brings one that has")
    if setup.device == "cuda":
        load_libraries("tensorrt" if first == PROVIDERS["tensorrt"] else "cuda")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if half:
        check_architecture(setup.manifest.architecture)
    graph = half_precision(setup.encoder) if half else setup.encoder
    session = ort.InferenceSession(graph.SerializeToString(), options, providers=providers, enable_fallback=0)
    if session.get_providers()[0] != first:
        raise MissingError(f"{first} could not be loaded: the driver, CUDA, cuDNN or TensorRT is missing")
    return session


def _slots(session: ort.InferenceSession, memory: Any, *, records: bool) -> Prepare:
    """Every batch in a slot of its own; its number, which CUDA graphs go by, is its size."""

    def prepare(pixels: Floats) -> Prepared:
        slot = Slot(session, len(pixels), memory, len(pixels) if records else NO_RECORDING)
        if records:
            slot.warm_up()
        slot.fill({"pixels": pixels}, len(pixels))
        return Prepared(slot.run, lambda: slot.read(["probabilities"], len(pixels))[0])

    return prepare


def _torch() -> Any:
    if not find_spec("torch"):
        raise MissingError("torch is not installed; pip install -e '.[train]'")
    import torch

    return torch


def _torch_model(setup: Setup) -> Any:
    """The bundle's network as a torch module, without its decoder, with the graph's weights."""
    from training.config import CapsNetConfig
    from training.config.renamed import with_current_names
    from training.models.capsnet import CapsNet

    torch = _torch()
    parameters = with_current_names(setup.manifest.parameters)
    model = CapsNet(CapsNetConfig(**{**parameters, "decoder_hidden": ()}))
    weights = {
        weight.name: torch.from_numpy(onnx.numpy_helper.to_array(weight).copy())
        for weight in setup.encoder.graph.initializer
        if weight.name in model.state_dict()
    }
    model.load_state_dict(weights)
    return model
