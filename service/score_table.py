"""Rows as CSV or JSON lines, in a file or on stdout."""

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Literal, TextIO

from service.score_query import Row, ScoreError

Format = Literal["csv", "jsonl"]


class Table:
    """Rows as CSV, with a column for each class in the model's order, or as one JSON object a line.

    A CSV cell stays empty where the class is not among the top k.
    """

    def __init__(self, file: TextIO, kind: Format, class_names: Sequence[str]) -> None:
        self._file = file
        self._class_names = class_names
        # "\n", not CSV's own "\r\n", of which cut and awk keep a half.
        self._csv = csv.writer(file, lineterminator="\n") if kind == "csv" else None
        if self._csv:
            self._csv.writerow(["path", "label", "probability", *class_names])

    def write(self, rows: Iterable[Row]) -> None:
        """Append rows, and flush: who reads the file meanwhile sees whole rows."""
        for row in rows:
            label, probability = row.classes[0]
            if self._csv:
                by_name = dict(row.classes)
                self._csv.writerow([row.path, label, probability, *map(by_name.get, self._class_names)])
            else:
                classes = [{"label": name, "probability": p} for name, p in row.classes]
                line = {"path": str(row.path), "label": label, "probability": probability, "classes": classes}
                self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()


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
    raise ScoreError(f"--out {out} ends neither in .csv nor in .jsonl; say which with --format")


@contextmanager
def open_output(out: str) -> Iterator[TextIO]:
    """The file, or stdout for `-`; UTF-8, and names that are no text as the bytes they are."""
    if out != "-":
        with Path(out).open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            yield file
        return
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    yield sys.stdout
