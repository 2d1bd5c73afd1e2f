"""A plan: which variant of a graph runs which batch, kept in a folder beside the graphs.

Reading a plan takes no onnx, so a service that finds one in its cache imports nothing else.
"""

import hashlib
import os
import platform
import re
from bisect import bisect_left
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from export.contract.architecture import StatedArchitecture

Variant = Literal["plain", "toom_cook_1d", "toom_cook_2d", "em_moments"]

FILE = "plan.json"
MAX_PARALLEL_BATCHES = 4  # batches that a service runs side by side
MAX_WAITED = 0.1  # on idle cores threads wait for less than a hundredth of the time


class Choice(BaseModel):
    """The variant for each size of batch.

    Attributes:
        variants: from the one for small batches to the one for large ones.
        borders: images in a batch, at most, for each of them but the last; ascending.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    variants: tuple[Variant, ...] = Field(min_length=1)
    borders: tuple[PositiveInt, ...] = ()

    @model_validator(mode="after")
    def _borders_lie_between_variants(self) -> "Choice":
        if len(self.borders) != len(self.variants) - 1 or any(a >= b for a, b in pairwise(self.borders)):
            raise ValueError(
                f"{len(self.variants)} variants need one border fewer, ascending; got {self.borders}"
            )
        return self

    def variant(self, images: int) -> Variant:
        """The variant for a batch of so many images."""
        return self.variants[bisect_left(self.borders, images)]

    def __str__(self) -> str:
        """In words: "plain", or "plain to 1 image, toom_cook_1d to 4 images, then toom_cook_2d"."""
        if not self.borders:
            return self.variants[0]
        ranges = [
            f"{variant} to {border} {'image' if border == 1 else 'images'}"
            for variant, border in zip(self.variants[:-1], self.borders, strict=True)
        ]
        return f"{', '.join(ranges)}, then {self.variants[-1]}"


class Plan(BaseModel):
    """Variants by the threads that a batch has and by its size.

    Attributes:
        exclusive: for a batch that has all cores.
        shared: for a batch that shares them with others.
        threads: of a batch that has all cores, and of one that shares them.
        errors: largest difference of an output from the plain graph's, by variant.
        milliseconds: of a batch, from which the choice was made: for `exclusive` and for `shared`, by variant
            and images.
        waited: seconds that threads waited for a core, all together, in each second of measuring; 0 where
            the system does not tell.
        sha256: of the files beside it, by name.
    """

    # An error may be infinite, for which JSON has no number.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")

    exclusive: Choice
    shared: Choice
    threads: tuple[int, int]
    errors: dict[Variant, float]
    milliseconds: dict[Literal["exclusive", "shared"], dict[Variant, dict[int, float]]]
    waited: float
    sha256: dict[str, str]

    @property
    def variants(self) -> set[Variant]:
        """Those in use."""
        return {*self.exclusive.variants, *self.shared.variants}

    @property
    def is_under_load(self) -> bool:
        """Whether something else took the cores while it was measured."""
        return self.waited > MAX_WAITED


ALWAYS_PLAIN = Choice(variants=("plain",))
PLAIN = Plan(
    exclusive=ALWAYS_PLAIN,
    shared=ALWAYS_PLAIN,
    threads=(1, 1),
    errors={},
    milliseconds={},
    waited=0.0,
    sha256={},
)


def read_plan(folder: Path) -> Plan | None:
    """The plan in a folder; None if there is none, or if its files have changed."""
    try:
        plan = Plan.model_validate_json((folder / FILE).read_bytes())
        if plan.sha256.keys() != {
            name for variant in plan.variants - {"plain"} for name in files_of(variant)
        }:
            return None
        for name, expected in plan.sha256.items():
            with (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                    return None
    except (OSError, ValidationError):
        return None
    return plan


def files_of(variant: Variant) -> tuple[str, str]:
    """The names of a variant's graph and of its weights."""
    return f"{variant}.onnx", f"{variant}.weights"


def plan_key(
    encoder_sha256: str, architecture: StatedArchitecture, threads: tuple[int, int], runtime: str
) -> str:
    """The name of a plan's folder: for this graph, on this processor, by this version of our code.

    Args:
        encoder_sha256: of the plain graph's file.
        architecture: of the network, from the bundle's manifest.
        threads: of a batch that has all cores, and of one that shares them.
        runtime: ONNX Runtime's version.
    """
    facts = (encoder_sha256, architecture.model_dump_json())
    parts = (*facts, _sources(), _processor(), platform.machine(), runtime, *map(str, threads))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@cache
def _sources() -> str:
    """A hash of the code that derives, and of what it reads: another version may derive something else."""
    digest, export = hashlib.sha256(), Path(__file__).parents[1]
    for part in ("contract/architecture.py", "fast_convolution/*.py", "optimize/*.py"):
        for file in sorted(export.glob(part)):
            digest.update(file.read_bytes())
    return digest.hexdigest()


@cache
def _processor() -> str:
    """The processor's name, what it can do, and how many there are."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    lines = re.findall(r"^(?:model name|CPU part|flags|Features)\s*:.*$", text, re.MULTILINE)
    return f"{sorted(set(lines)) or platform.processor()} {os.cpu_count()}"
