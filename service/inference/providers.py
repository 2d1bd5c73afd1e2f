"""Devices and their ONNX Runtime providers: which are available, and with which options."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Literal, NamedTuple

import onnxruntime as ort

from export.contract.architecture import CPU_BATCH, GPU_MATRIX_BATCH
from export.contract.manifest import Architecture, Graph, Tensor
from export.contract.samples import CPU_TOLERANCE
from service.settings import Device, Precision, Settings

UsedDevice = Literal["cpu", "cuda", "tensorrt"]
ProviderOptions = dict[str, str]
Providers = list[tuple[str, ProviderOptions]]

PROVIDERS: dict[UsedDevice, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
# Largest absolute difference from samples.npz, whose outputs a CPU computed. CUDA sums in another order;
# TensorRT also chooses kernels by their speed and may round to TF32.
TOLERANCE: dict[UsedDevice, float] = {"cpu": CPU_TOLERANCE, "cuda": 1e-3, "tensorrt": 1e-2}
# The same of an encoder in half precision.
HALF_TOLERANCE = {"probabilities": 5e-3, "poses": 1e-2}
# Maximum images per run unless the settings say otherwise. On CPUs larger batches are hardly faster; an H200
# encodes 1.5 times as many images a second by 512 as by 64 in float32, and 2 times in half precision.
LARGEST_BATCH: dict[UsedDevice, int] = {"cpu": CPU_BATCH["capsnet"], "cuda": 512, "tensorrt": 64}
LARGEST_MATRIX_BATCH: dict[UsedDevice, int] = {
    "cpu": CPU_BATCH["matrix-capsnet"],
    "cuda": GPU_MATRIX_BATCH,
    "tensorrt": GPU_MATRIX_BATCH,
}


class DeviceError(RuntimeError):
    """The requested device is not available; the message says what is missing."""


class EngineOptions(NamedTuple):
    """Where and how graphs run.

    Attributes:
        device: the requested one.
        max_batch: maximum images per run; 0 is the device's default.
        cache: folder for built engines.
        threads: that compute, on a CPU; 0 is one for every usable CPU.
        precision: of the encoder's products; half precision is for GPUs alone.
        optimize: derive faster graphs for a CPU.
    """

    device: Device
    max_batch: int
    cache: Path
    threads: int = 0
    precision: Precision = "float32"
    optimize: bool = True

    def largest_batch(self, device: UsedDevice, architecture: Architecture = "capsnet") -> int:
        """Maximum images per run of an encoder of this architecture, or of any decoder, on this device."""
        is_matrix = architecture == "matrix-capsnet"
        return self.max_batch or (LARGEST_MATRIX_BATCH if is_matrix else LARGEST_BATCH)[device]


def engine_options(settings: Settings) -> EngineOptions:
    """Where and how the settings let graphs run."""
    return EngineOptions(
        settings.device,
        settings.max_batch,
        settings.cache,
        settings.threads,
        settings.precision,
        optimize=settings.optimize,
    )


def candidates(
    asked: Device, available: Collection[str], precision: Precision = "float32"
) -> Sequence[UsedDevice]:
    """Devices to try, best first: CUDA and the CPU for `auto`, else only the requested one.

    Raises:
        DeviceError: the installed onnxruntime has no provider for an explicit device, or half precision is
            requested and there is no GPU for it.
    """
    if precision == "half" and (asked == "cpu" or (asked == "auto" and PROVIDERS["cuda"] not in available)):
        raise DeviceError(
            f"half precision needs a GPU, but device {asked} is the CPU here; onnxruntime-gpu provides "
            "CAPSNET_DEVICE=cuda, and CAPSNET_PRECISION=float32 runs on the CPU"
        )
    if asked == "auto":
        if precision == "half":
            return ["cuda"]
        return ["cuda", "cpu"] if PROVIDERS["cuda"] in available else ["cpu"]
    if PROVIDERS[asked] not in available:
        raise DeviceError(
            f"device {asked} needs {PROVIDERS[asked]}, but the installed onnxruntime has only "
            f"{', '.join(available)}; install onnxruntime-gpu or set CAPSNET_DEVICE=auto"
        )
    return [asked]


def load_libraries(device: UsedDevice) -> None:
    """Load a GPU's libraries where pip has installed them as packages; else the system finds them or not.

    Args:
        device: `cuda` needs CUDA and cuDNN, `tensorrt` these and TensorRT.
    """
    ort.preload_dlls()
    if device == "tensorrt":
        with suppress(ModuleNotFoundError):
            import_module("tensorrt_libs")  # loads them; from the extra `tensorrt`


def provider_list(
    device: UsedDevice, graph: Graph, options: EngineOptions, *, records: bool = False
) -> Providers:
    """Providers in order of preference, with options; the next ones take what operators one cannot run.

    Args:
        device: the device to use.
        graph: the graph that will run on it.
        options: precision, batch and cache.
        records: make CUDA graphs, which only the CUDA provider does.
    """
    cpu: tuple[str, ProviderOptions] = (PROVIDERS["cpu"], {})
    is_half = options.precision == "half"
    if device == "tensorrt":
        folder = options.cache.expanduser() / "tensorrt" / f"{graph.sha256[:16]}-{options.precision}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DeviceError(f"TensorRT needs a writable CAPSNET_CACHE: {error}") from None
        tensorrt = tensorrt_options(graph, options.largest_batch(device), folder, half=is_half)
        return [(PROVIDERS["tensorrt"], tensorrt), (PROVIDERS["cuda"], cuda_options(records=False)), cpu]
    cuda = (PROVIDERS["cuda"], cuda_options(records=records, half=is_half))
    return [cuda, cpu] if device == "cuda" else [cpu]


def sample_tolerances(device: UsedDevice, precision: Precision) -> Mapping[str, float]:
    """How much each output may differ from its value in samples.npz, by the output's name."""
    plain = dict.fromkeys(("probabilities", "poses", "reconstruction"), TOLERANCE[device])
    return plain | HALF_TOLERANCE if precision == "half" else plain


def cuda_options(*, records: bool, half: bool = False) -> ProviderOptions:
    """Options of the CUDA provider: full float32, memory as needed, no search per batch size.

    Args:
        records: make CUDA graphs; the session must then be run as `service.inference.gpu_session` does.
        half: for a graph in half precision. With the channels last, 512 MNIST images are encoded 4 % faster
            there (H200), but at half the speed in float32.
    """
    return {
        "use_tf32": "0",
        "arena_extend_strategy": "kSameAsRequested",
        # cuDNN's own choice. In half precision the default, EXHAUSTIVE, took four times as long (H200).
        "cudnn_conv_algo_search": "HEURISTIC",
        "enable_cuda_graph": "1" if records else "0",
        "prefer_nhwc": "1" if half else "0",
    }


def tensorrt_options(graph: Graph, max_batch: int, folder: Path, *, half: bool) -> ProviderOptions:
    """Options of the TensorRT provider: built engines are kept, and made for 1 to max_batch images.

    CUDA graphs stay off: an engine made for many sizes changes its state with the size, so a recording of
    another size would not be the run that it was. TensorRT has few kernels left to launch.

    Args:
        graph: its inputs get the profile's shapes.
        max_batch: maximum images per run; engines are tuned for this size.
        folder: where engines and timings are kept; one per graph content, because ONNX Runtime's own key for
            an engine knows the graph's structure and not its weights.
        half: let it use float16, for a graph in half precision.
    """

    def shapes(images: int) -> str:
        return ",".join(f"{tensor.name}:{_sizes(tensor, images)}" for tensor in graph.inputs)

    return {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(folder),
        "trt_fp16_enable": "1" if half else "0",
        # Squares and their sums stay in float32: these are the norms that squashing divides by.
        "trt_layer_norm_fp32_fallback": "1" if half else "0",
        # If the graph is split into several engines, they take turns: one thread runs them.
        "trt_context_memory_sharing_enable": "1",
        "trt_cuda_graph_enable": "0",
        "trt_profile_min_shapes": shapes(1),
        "trt_profile_opt_shapes": shapes(max_batch),
        "trt_profile_max_shapes": shapes(max_batch),
    }


def _sizes(tensor: Tensor, images: int) -> str:
    return "x".join(str(images if size is None else size) for size in tensor.shape)
