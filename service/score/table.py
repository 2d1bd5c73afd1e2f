"""Rows as lines of text: CSV, or one JSON object a line."""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from service.score.query import Capsule, Row, ScoreError, Skipped

Format = Literal["csv", "jsonl", "parquet"]
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # of cells that spreadsheets compute


@dataclass(frozen=True)
class Columns:
    """The columns of CSV and Parquet: of every class, in the model's order, and of its pose where asked for.

    A cell stays empty where the class is not among the top k.
    """

    class_names: Sequence[str]
    poses: bool

    @property
    def pose_names(self) -> list[str]:
        """What the columns of the poses are called."""
        return [f"{name}_pose" for name in self.class_names] if self.poses else []

    @property
    def names(self) -> list[str]:
        """What the columns are called."""
        return ["path", "label", "probability", "confident", "blank", *self.class_names, *self.pose_names]


class Csv:
    """CSV with one header; a pose is a JSON list in its cell.

    A text that a spreadsheet would take for a formula has an apostrophe before it: names come from strangers.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def header(self) -> bytes:
        """The first line."""
        return self._written([[_defused(name) for name in self._columns.names]])

    def lines(self, rows: Iterable[Row]) -> bytes:
        """A line for each row."""
        return self._written(map(self._cells, rows))

    def _cells(self, row: Row) -> list[object]:
        by_name = {capsule.label: capsule for capsule in row.classes}
        known = [by_name.get(name) for name in self._columns.class_names]
        best = row.classes[0]
        cells: list[object] = [
            _defused(row.name),
            _defused(best.label),
            best.probability,
            _truth(row.confident),
            _truth(row.blank),
            *(c.probability if c else None for c in known),
        ]
        if self._columns.poses:
            cells += [json.dumps(c.pose) if c else None for c in known]
        return cells

    @staticmethod
    def _written(rows: Iterable[Sequence[object]]) -> bytes:
        text = StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)  # CSV's own "\r\n" cut and awk keep a half of
        return to_bytes(text.getvalue())


class JsonLines:
    """One JSON object a line, without a header."""

    def header(self) -> bytes:
        """Nothing."""
        return b""

    def lines(self, rows: Iterable[Row]) -> bytes:
        """A line for each row."""
        return b"".join(_json_line(_described(row)) for row in rows)


def error_lines(skipped: Iterable[Skipped]) -> bytes:
    """A line of JSON for each picture without a row."""
    return b"".join(_json_line({"path": one.name, "reason": one.reason}) for one in skipped)


def to_bytes(text: str) -> bytes:
    """UTF-8, and names that are no text as the bytes they are."""
    return text.encode("utf-8", "surrogateescape")


def from_bytes(text: bytes) -> str:
    """The text of `to_bytes`."""
    return text.decode("utf-8", "surrogateescape")


def choose_format(out: str, asked: Format | None) -> Format:
    """The format asked for, or the one the file's name tells.

    Raises:
        ScoreError: it tells none.
    """
    if asked:
        return asked
    if out == "-":
        return "csv"
    match Path(out).suffix.lower():
        case ".csv":
            return "csv"
        case ".jsonl":
            return "jsonl"
        case ".parquet":
            return "parquet"
    raise ScoreError(f"--out {out} ends in none of .csv, .jsonl and .parquet; say which with --format")


def _described(row: Row) -> dict[str, object]:
    best = row.classes[0]
    classes = [_described_capsule(capsule) for capsule in row.classes]
    return {
        "path": row.name,
        "label": best.label,
        "probability": best.probability,
        "confident": row.confident,
        "blank": row.blank,
        "classes": classes,
    }


def _defused(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def _truth(value: bool | None) -> str:
    """As JSON writes it, and nothing for None."""
    return "" if value is None else json.dumps(value)


def _described_capsule(capsule: Capsule) -> dict[str, Any]:
    described = {"label": capsule.label, "probability": capsule.probability}
    return described if capsule.pose is None else {**described, "pose": capsule.pose}


def _json_line(described: object) -> bytes:
    return to_bytes(json.dumps(described, ensure_ascii=False) + "\n")
