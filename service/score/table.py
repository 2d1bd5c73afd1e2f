"""Rows as lines of text: CSV, or one JSON object a line."""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from service.score.query import Row, ScoredClass, ScoreError, Skipped

Format = Literal["csv", "jsonl", "parquet"]
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # of cells that spreadsheets compute


@dataclass(frozen=True)
class Columns:
    """The columns of CSV and Parquet: one for every class, in the model's order, and for its pose if wanted.

    A cell is empty if the class is not among the top k.
    """

    class_names: Sequence[str]
    poses: bool

    @property
    def pose_names(self) -> list[str]:
        """The names of the poses' columns."""
        return [f"{name}_pose" for name in self.class_names] if self.poses else []

    @property
    def names(self) -> list[str]:
        """The names of all columns."""
        return ["path", "label", "probability", "confident", "blank", *self.class_names, *self.pose_names]

    def refuse_equal_names(self, remedy: str = "write .jsonl") -> None:
        """Check that each column has a name of its own, as Parquet needs.

        Args:
            remedy: for the error.

        Raises:
            ScoreError: a class is named like another column.
        """
        if equal := sorted({name for name in self.names if self.names.count(name) > 1}):
            raise ScoreError(
                f"a class is named {', '.join(equal)}, as another column of the table is, which Parquet does "
                f"not allow: {remedy}"
            )


class Csv:
    """CSV with one header; the cell of a pose is a JSON list.

    A text that a spreadsheet would take for a formula gets an apostrophe in front: names are untrusted.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def header(self) -> bytes:
        """The first line."""
        return self._format([[_escape_formula(name) for name in self._columns.names]])

    def lines(self, rows: Iterable[Row]) -> bytes:
        """A line for each row."""
        return self._format(map(self._cells, rows))

    def _cells(self, row: Row) -> list[object]:
        by_name = {capsule.label: capsule for capsule in row.classes}
        known = [by_name.get(name) for name in self._columns.class_names]
        best = row.classes[0]
        cells: list[object] = [
            _escape_formula(row.name),
            _escape_formula(best.label),
            best.probability,
            _json_bool(row.confident),
            _json_bool(row.blank),
            *(c.probability if c else None for c in known),
        ]
        if self._columns.poses:
            cells += [json.dumps(c.pose) if c else None for c in known]
        return cells

    @staticmethod
    def _format(rows: Iterable[Sequence[object]]) -> bytes:
        text = StringIO()
        plain = csv.writer(text, lineterminator="\n")  # cut and awk would keep the "\r" of "\r\n"
        quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
        for row in rows:
            # Until Python 3.13 nothing is quoted for its "\r", which readers take for the end of a row.
            has_return = any(isinstance(cell, str) and "\r" in cell for cell in row)
            (quoted if has_return else plain).writerow(row)
        return to_bytes(text.getvalue())


class JsonLines:
    """One JSON object a line, without a header."""

    def header(self) -> bytes:
        """Nothing."""
        return b""

    def lines(self, rows: Iterable[Row]) -> bytes:
        """A line for each row."""
        return b"".join(_json_line(row_json(row)) for row in rows)


def error_lines(skipped: Iterable[Skipped]) -> bytes:
    """A line of JSON for each picture without a row."""
    return b"".join(_json_line({"path": one.name, "reason": one.reason}) for one in skipped)


def to_bytes(text: str) -> bytes:
    """UTF-8; names that are not valid text become their original bytes."""
    return text.encode("utf-8", "surrogateescape")


def from_bytes(text: bytes) -> str:
    """The inverse of `to_bytes`."""
    return text.decode("utf-8", "surrogateescape")


def choose_format(out: str, requested: Format | None) -> Format:
    """The requested format, or that of the file's suffix.

    Raises:
        ScoreError: the suffix is another one.
    """
    if requested:
        return requested
    if out == "-":
        return "csv"
    match Path(out).suffix.lower():
        case ".csv":
            return "csv"
        case ".jsonl":
            return "jsonl"
        case ".parquet":
            return "parquet"
    raise ScoreError(f"--out {out} ends in none of .csv, .jsonl and .parquet; choose one with --format")


def row_json(row: Row) -> dict[str, Any]:
    """A row as the object of its JSON line."""
    best = row.classes[0]
    classes = [_class_json(capsule) for capsule in row.classes]
    return {
        "path": row.name,
        "label": best.label,
        "probability": best.probability,
        "confident": row.confident,
        "blank": row.blank,
        "classes": classes,
    }


def _escape_formula(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def _json_bool(value: bool | None) -> str:
    """As in JSON; empty for None."""
    return "" if value is None else json.dumps(value)


def _class_json(capsule: ScoredClass) -> dict[str, Any]:
    described = {"label": capsule.label, "probability": capsule.probability}
    return described if capsule.pose is None else {**described, "pose": capsule.pose}


def _json_line(value: object) -> bytes:
    return to_bytes(json.dumps(value, ensure_ascii=False) + "\n")
