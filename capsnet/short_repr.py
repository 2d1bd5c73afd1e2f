"""How answers look where they are printed: every field, but no long array, no file and no long list."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

FIRST = 3  # of a list's entries, if it has more than twice as many
CHARACTERS = 200  # of a text


class ShortRepr:
    """A dataclass whose `repr` fits on a screen."""

    def __repr__(self) -> str:
        given = ((field.name, getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]
        return named(type(self).__name__, given)


def named(name: str, given: Iterable[tuple[str, object]]) -> str:
    """`Name(field=value, ...)` with short values."""
    return f"{name}({', '.join(f'{field}={_short(value)}' for field, value in given)})"


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} {list(value.shape)}>"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, Mapping) and len(value) > 2 * FIRST:
        return f"<{len(value)} entries>"
    if isinstance(value, tuple | list):
        shown = [_short(one) for one in (value if len(value) <= 2 * FIRST else value[:FIRST])]
        left = len(value) - len(shown)
        return f"[{', '.join([*shown, f'and {left} more'] if left else shown)}]"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = repr(value)
    return text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}..."
