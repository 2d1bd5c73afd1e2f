"""How answers are printed: all fields, but long arrays, files and lists abbreviated."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

SHOWN_ENTRIES = 3  # of a list with more than twice as many
MAX_CHARACTERS = 200  # of a text


class ShortRepr:
    """A dataclass whose `repr` fits on a screen."""

    def __repr__(self) -> str:
        given = ((field.name, getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]
        return named(type(self).__name__, given)


def named(name: str, given: Iterable[tuple[str, object]]) -> str:
    """`Name(field=value, ...)` with abbreviated values."""
    return f"{name}({', '.join(f'{field}={_short(value)}' for field, value in given)})"


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} {list(value.shape)}>"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, Mapping) and len(value) > 2 * SHOWN_ENTRIES:
        return f"<{len(value)} entries>"
    if isinstance(value, tuple | list):
        shown = [_short(one) for one in (value if len(value) <= 2 * SHOWN_ENTRIES else value[:SHOWN_ENTRIES])]
        left = len(value) - len(shown)
        return f"[{', '.join([*shown, f'and {left} more'] if left else shown)}]"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = repr(value)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."
