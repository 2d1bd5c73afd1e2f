"""The text of Triton's config.pbtxt: one for a graph, one for the ensemble that joins the graphs.

Fields and their meaning: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from export.contract.manifest import Tensor

Device = Literal["cpu", "gpu"]
Step = tuple[str, Sequence[Tensor], Sequence[Tensor]]  # a model, its inputs and outputs

LABELS = "labels.txt"
WRITTEN_BY = "# Written by capsnet-export triton, which writes it anew when it adds a version."
KINDS: dict[Device, str] = {"cpu": "KIND_CPU", "gpu": "KIND_GPU"}
# The service's own settings: by default products are rounded to TF32, cuDNN times every algorithm anew for
# each batch size it meets, in traffic, and memory doubles whenever it grows. Triton passes options of the
# accelerator "cuda" on from 24.08 (triton-inference-server/onnxruntime_backend, pull request 256). The other
# two stand among the parameters, where every version looks for them and else has its defaults.
GPU_OPTIONS = """\
optimization { execution_accelerators { gpu_execution_accelerator: [ {
  name: "cuda"
  parameters { key: "use_tf32" value: "0" }
} ] } }
parameters { key: "cudnn_conv_algo_search" value: { string_value: "1" } }  # HEURISTIC
parameters { key: "arena_extend_strategy" value: { string_value: "1" } }  # kSameAsRequested
"""


@dataclass(frozen=True)
class Batching:
    """How many images Triton runs together.

    Attributes:
        largest: in a run, and in a request, at most.
        gathered: of several requests, at most.
    """

    largest: int
    gathered: int


def graph_config(
    name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], device: Device, batching: Batching
) -> str:
    """Configuration of a model that ONNX Runtime runs, in every version that its folder holds."""
    return with_device(_interface(name, 'backend: "onnxruntime"', inputs, outputs), device, batching)


def with_device(config: str, device: Device, batching: Batching) -> str:
    """The configuration of a graph, or its shared part, for this device and these batches."""
    # One preferred size, the largest: Triton ends a batch at a preferred size, so smaller ones would keep it
    # from taking all that waits. Nothing waits for company: the delay is 0 by default.
    return f"""{shared_part(config)}\
max_batch_size: {batching.largest}
version_policy {{ all {{ }} }}
dynamic_batching {{ preferred_batch_size: [ {batching.gathered} ] }}
instance_group [ {{ count: 1 kind: {KINDS[device]} }} ]
{GPU_OPTIONS if device == "gpu" else ""}"""


def ensemble_config(
    name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    steps: Sequence[Step],
    version: int,
    max_batch: int,
) -> str:
    """Configuration of an ensemble that is served in one version, which is that of its steps.

    Tensors are joined by name: what a step gives goes to the steps that take a tensor of that name.
    """
    listed = ",\n".join(_step(model, version, taken, given) for model, taken, given in steps)
    return f"""{_interface(name, 'platform: "ensemble"', inputs, outputs)}\
max_batch_size: {max_batch}
version_policy {{ specific {{ versions: [ {version} ] }} }}
ensemble_scheduling {{
  step [
{listed}
  ]
}}
"""


def shared_part(config: str) -> str:
    """The part that every version of a model has in common: its name, inputs and outputs."""
    return config.partition("\nmax_batch_size: ")[0] + "\n"


def _interface(name: str, runs_on: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    return f"""\
{WRITTEN_BY}
name: "{name}"
{runs_on}
input [
{_tensors(inputs, labels=False)}
]
output [
{_tensors(outputs, labels=True)}
]
"""


def _tensors(tensors: Sequence[Tensor], *, labels: bool) -> str:
    """One tensor per line, without its batch axis: with a max_batch_size Triton adds that itself."""
    lines = []
    for tensor in tensors:
        dims = ", ".join(str(size) for size in tensor.shape[1:])
        fields = f'name: "{tensor.name}" data_type: TYPE_FP32 dims: [ {dims} ]'
        if labels and tensor.name == "probabilities":
            fields += f' label_filename: "{LABELS}"'
        lines.append(f"  {{ {fields} }}")
    return ",\n".join(lines)


def _step(model: str, version: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    lines = [f'model_name: "{model}"', f"model_version: {version}"]
    lines += [f'input_map {{ key: "{tensor.name}" value: "{tensor.name}" }}' for tensor in inputs]
    lines += [f'output_map {{ key: "{tensor.name}" value: "{tensor.name}" }}' for tensor in outputs]
    return "    {\n" + "".join(f"      {line}\n" for line in lines) + "    }"
