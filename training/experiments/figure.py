"""Figures of experiments, in one style."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

OURS, OTHER, PAPER = "#1f6fb4", "#d9772b", "#444444"  # ours, what it is compared with, the paper's numbers
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "font.size": 9.0,
}
WIDTH_INCHES, HEIGHT_INCHES, DPI = 4.8, 3.2, 150


@contextmanager
def saved(file: Path, columns: int = 1, rows: int = 1, height: float = HEIGHT_INCHES) -> Iterator[list[Any]]:
    """Axes of a figure, row by row, that is written when they have been drawn into.

    Args:
        file: a PNG.
        columns: axes beside each other.
        rows: of axes.
        height: of a row, inches.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES * columns, height * rows), dpi=DPI, layout="constrained")
        yield list(np.ravel(figure.subplots(rows, columns)))
        figure.savefig(file)


def draw_errors(
    axis: Any, data: str, errors: Mapping[str, tuple[list[float], float | None]], paper_points: float = 18
) -> None:
    """Test errors of every seed, one line of dots below the other, beside the paper's.

    Args:
        axis: to draw into.
        data: what they were measured on.
        errors: by the name of the line, from the top: ours and the paper's, in percent.
        paper_points: height of the paper's mark.
    """
    lines = list(errors.items())[::-1]
    for height, (_, (ours, paper)) in enumerate(lines):
        axis.plot(ours, [height] * len(ours), "o", color=OURS)
        if paper is not None:
            axis.plot([paper], [height], "|", color=PAPER, markersize=paper_points)
    axis.set_yticks(range(len(lines)), [name for name, _ in lines])
    axis.set_xlim(left=0)
    axis.set_xlabel(f"test error on {data}, %")


def legend(axis: Any, entries: dict[str, tuple[str, str]], above: bool = False) -> None:
    """A legend of markers: from text to (marker, color); above all axes where it could hide something."""
    lines = [
        Line2D([], [], color=color, marker=marker, linestyle="", label=text)
        for text, (marker, color) in entries.items()
    ]
    if above:
        axis.figure.legend(handles=lines, loc="outside upper right", ncols=len(lines), frameon=False)
    else:
        axis.legend(handles=lines)


def save_grid(
    file: Path,
    pictures: list[list[NDArray[np.uint8] | None]],
    row_titles: list[str],
    column_titles: list[str],
    captions: list[list[str]] | None = None,
) -> None:
    """Pictures in rows and columns.

    Args:
        file: a PNG.
        pictures: row by row, each uint8 [H, W] or [H, W, 3], or None for an empty place.
        row_titles: to the left of each row.
        column_titles: above each column; may be empty texts.
        captions: below each picture, as pictures.
    """
    with mpl.rc_context({"font.size": 7.0}):
        rows, columns = len(pictures), len(pictures[0])
        tall = 1.0 if captions else 0.8
        figure = Figure(figsize=(0.8 * columns + 1, tall * rows + 0.3), dpi=DPI, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        for r, line in enumerate(pictures):
            for c, picture in enumerate(line):
                _show(axes[r, c], picture)
                if captions:
                    axes[r, c].set_xlabel(captions[r][c], labelpad=1)
        for axis, title in zip(axes[0], column_titles, strict=True):
            axis.set_title(title, fontsize=7)
        for axis, title in zip(axes[:, 0], row_titles, strict=True):
            axis.set_ylabel(title, rotation=0, ha="right", va="center")
        figure.savefig(file)


def _show(axis: Any, picture: NDArray[np.uint8] | None) -> None:
    """A picture without a frame around it, or nothing."""
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_frame_on(False)
    if picture is not None:
        axis.imshow(picture, cmap="gray", vmin=0, vmax=255)
