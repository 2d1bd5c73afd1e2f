"""What is done to good JSON and good bytes so that they are good no more."""

import struct
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

Draw = st.DrawFn

ODD_VALUES = (
    *(None, True, False, 0, 1, -1, 2**31, 2**32 - 1, 2**63, -(2**63) - 1, 10**30),
    *(0.5, -0.0, 1e-45, 1e38, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "0", "NaN", "\x00", "\ud800", "ä", "x" * 3000, "__proto__", "../..", "${jndi:x}", "%s%n"),
    *([], {}, [[]], [None], [[[[[[[[[[0]]]]]]]]]], {"": {}}),
)
ODD_NUMBERS = (0, 1, 2, 7, 8, 255, 256, 32767, 32768, 65535, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
MOST_CHANGES = 3


def mostly(draw: Draw, good: Any, odd: Sequence[Any]) -> Any:
    """The good value, but one of the odd ones every eighth time."""
    return draw(st.sampled_from(odd)) if draw(st.integers(0, 7)) == 7 else good


@st.composite
def odd_values(draw: Draw) -> Any:
    """A JSON value that nobody has asked for; NaN and infinity among them, which json.dumps writes."""
    return deepcopy(draw(st.sampled_from(ODD_VALUES) | st.integers() | st.floats() | st.text(max_size=20)))


@st.composite
def altered(draw: Draw, tree: Any) -> Any:
    """A JSON value with up to three of its parts replaced, left out, repeated or wrapped."""
    tree = [deepcopy(tree)]  # the value itself is a part
    for _ in range(draw(st.integers(0, MOST_CHANGES))):
        holder, key = draw(st.sampled_from(_parts(tree)))
        change = draw(st.sampled_from(["replace", "replace", "leave out", "repeat", "wrap"]))
        if change == "wrap":
            holder[key] = [holder[key]]
        elif change == "leave out" and holder is not tree:
            del holder[key]
        elif change == "repeat" and isinstance(holder, list) and holder is not tree:
            holder.insert(key, deepcopy(holder[key]))
        else:
            holder[key] = draw(odd_values())
    return tree[0]


def _parts(tree: Any) -> list[tuple[Any, Any]]:
    """Where every part of a value stands: what holds it, and its key or index; of long lists a few."""
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    keys = keys if len(keys) <= 8 else [*keys[:2], keys[-1]]
    inner = [_parts(tree[key]) for key in keys if isinstance(tree[key], dict | list)]
    return [(tree, key) for key in keys] + [part for parts in inner for part in parts]


@st.composite
def damaged(draw: Draw, content: bytes) -> bytes:
    """Bytes that were cut off, flipped, overwritten, doubled, taken out or added to, up to three times."""
    for _ in range(draw(st.integers(0, MOST_CHANGES))):
        content = draw(st.sampled_from(DAMAGES))(draw, content)
    return content


def _place(draw: Draw, content: bytes) -> int:
    """A place in the bytes; half of the time among the first, where headers are."""
    return draw(st.integers(0, min(64, len(content))) | st.integers(0, len(content)))


def _cut_off(draw: Draw, content: bytes) -> bytes:
    return content[: _place(draw, content)]


def _flip(draw: Draw, content: bytes) -> bytes:
    place = _place(draw, content)
    return content[:place] + bytes(255 - byte for byte in content[place : place + 1]) + content[place + 1 :]


def _overwrite(draw: Draw, content: bytes) -> bytes:
    """Put an odd number where there may have been a size."""
    place, number = _place(draw, content), draw(st.sampled_from(ODD_NUMBERS))
    form = draw(st.sampled_from(["<I", ">I", "<H", ">H", "B"]))
    packed = struct.pack(form, number % (1 << 8 * struct.calcsize(form)))
    return content[:place] + packed + content[place + len(packed) :]


def _double(draw: Draw, content: bytes) -> bytes:
    first, last = sorted((_place(draw, content), _place(draw, content)))
    return content[:last] + content[first:last] + content[last:]


def _take_out(draw: Draw, content: bytes) -> bytes:
    first, last = sorted((_place(draw, content), _place(draw, content)))
    return content[:first] + content[last:]


def _put_in(draw: Draw, content: bytes) -> bytes:
    place = draw(st.just(len(content)) | st.integers(0, len(content)))
    return content[:place] + draw(st.binary(min_size=1, max_size=50)) + content[place:]


DAMAGES = (_cut_off, _flip, _overwrite, _double, _take_out, _put_in)
