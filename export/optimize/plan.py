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

from pydantic import BaseModel, ConfigDict, ValidationError

Form = Literal["plain", "one_axis", "both_axes"]

FILE = "plan.json"


class Plan(BaseModel):
    """Forms by the size of a batch and by the threads it has, and where they are.

    Attributes:
        alone: the form for a small batch that has all cores.
        small: the form for a small batch that shares them.
        small_up_to: images in a small batch, at most.
        large: the form for larger ones.
        errors: largest difference of an output from the plain graph's, by form.
        milliseconds: of a batch, which the choice was made from: by threads, form and images.
        sha256: of the files beside it, by name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    alone: Form
    small: Form
    small_up_to: int
    large: Form
    errors: dict[Form, float]
    milliseconds: dict[int, dict[Form, dict[int, float]]]
    sha256: dict[str, str]

    @property
    def forms(self) -> set[Form]:
        """Those in use."""
        return {self.alone, self.small, self.large}


PLAIN = Plan(
    alone="plain", small="plain", small_up_to=1, large="plain", errors={}, milliseconds={}, sha256={}
)


def read_plan(folder: Path) -> Plan | None:
    """The plan in a folder, or None where there is none or its files are not those that were written."""
    try:
        plan = Plan.model_validate_json((folder / FILE).read_bytes())
        for name, expected in plan.sha256.items():
            with (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                    return None
    except (OSError, ValidationError):
        return None
    return plan


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
    """The processor's name and how many there are."""
    try:
        name = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        name = None
    return f"{name[1] if name else platform.processor()} {os.cpu_count()}"
