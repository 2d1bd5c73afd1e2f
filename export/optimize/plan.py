"""Which form of a graph runs which batch: what was derived and measured, as it is kept in a folder.

Reading it takes no onnx, so a service that finds its plan made has nothing else to import.
"""

import hashlib
import os
import platform
import re
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Form = Literal["plain", "one_axis", "both_axes"]

FILE = "plan.json"


class Choice(BaseModel):
    """The form for each size of batch.

    Attributes:
        small: the one for small batches.
        small_up_to: images in such a batch, at most.
        large: the one for larger ones.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    small: Form
    small_up_to: int = Field(ge=1)
    large: Form

    def __str__(self) -> str:
        """In words: "plain", or "one_axis to 4 images, then both_axes"."""
        if self.small == self.large:
            return self.large
        return f"{self.small} to {self.small_up_to} image{'s'[: self.small_up_to - 1]}, then {self.large}"


class Plan(BaseModel):
    """Forms by the threads that a batch has and by its size.

    Attributes:
        alone: for a batch that has all cores.
        beside: for one that shares them with others.
        errors: largest difference of an output from the plain graph's, by form.
        milliseconds: of a batch, which the choice was made from: by threads, form and images.
        sha256: of the files beside it, by name.
    """

    # An error may be infinite, for which JSON has no number.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")

    alone: Choice
    beside: Choice
    errors: dict[Form, float]
    milliseconds: dict[int, dict[Form, dict[int, float]]]
    sha256: dict[str, str]

    @property
    def forms(self) -> set[Form]:
        """Those in use."""
        return {self.alone.small, self.alone.large, self.beside.small, self.beside.large}


ALWAYS_PLAIN = Choice(small="plain", small_up_to=1, large="plain")
PLAIN = Plan(alone=ALWAYS_PLAIN, beside=ALWAYS_PLAIN, errors={}, milliseconds={}, sha256={})


def read_plan(folder: Path) -> Plan | None:
    """The plan in a folder, or None where there is none or its files are not those that were written."""
    try:
        plan = Plan.model_validate_json((folder / FILE).read_bytes())
        if plan.sha256.keys() != {name for form in plan.forms - {"plain"} for name in files_of(form)}:
            return None
        for name, expected in plan.sha256.items():
            with (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                    return None
    except (OSError, ValidationError):
        return None
    return plan


def files_of(form: Form) -> tuple[str, str]:
    """The names of a form's graph and of its weights."""
    return f"{form}.onnx", f"{form}.weights"


def plan_key(encoder_sha256: str, threads: tuple[int, int], runtime: str) -> str:
    """The name of a plan's folder: for this graph, on this processor, by this version of our code.

    Args:
        encoder_sha256: of the plain graph's file.
        threads: of a batch that is alone and of one that shares the cores.
        runtime: ONNX Runtime's version.
    """
    parts = (encoder_sha256, _sources(), _processor(), platform.machine(), runtime, *map(str, threads))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@cache
def _sources() -> str:
    """A hash of the code that derives: another version of it may derive something else."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
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
