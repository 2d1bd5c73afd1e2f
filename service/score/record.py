"""The record of a run, from which a killed one goes on: what was asked, and how far it is.

Pictures come in an order that only their names and places decide. So a count tells which of them are done,
and a hash of their names whether they still are the same, without a million names in memory.
"""

import hashlib
import os
from itertools import islice
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.score.pictures import Upcoming, row_names
from service.score.query import ScoreError
from service.score.table import Format, to_bytes


class Asked(BaseModel):
    """What decides a run's rows; a run goes on with the same or not at all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    version: int
    digest: str
    top_k: int | None
    preprocess: Literal["auto", "off"]
    poses: bool
    min_probability: float | None = None
    format: Format
    image_column: str | None
    id_column: str | None
    views: int = 1


class Record(BaseModel):
    """How far a run is.

    Attributes:
        asked: what decides its rows.
        pictures: done, with a row or without; a pair of views counts once.
        labels: how many rows each label has.
        names_sha256: of the names of the pictures done, see `NamesHash`.
        rows_bytes: length of the table, or of the rows that wait to become Parquet.
        errors_bytes: length of the errors.
        finished: whether all pictures are done.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    asked: Asked
    pictures: int = Field(default=0, ge=0)
    labels: dict[str, int] = {}
    names_sha256: str = ""
    rows_bytes: int = Field(default=0, ge=0)
    errors_bytes: int = Field(default=0, ge=0)
    finished: bool = False

    @property
    def scored(self) -> int:
        """Pictures that have a row."""
        return sum(self.labels.values())

    @property
    def skipped(self) -> int:
        """Pictures that have none."""
        return self.pictures - self.scored


class NamesHash:
    """SHA-256 of names in their order, each followed by a zero byte, which no name holds."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, name: str) -> None:
        """The next name."""
        self._hash.update(to_bytes(name) + b"\0")

    def hexdigest(self) -> str:
        """Of the names so far."""
        return self._hash.hexdigest()


def read_record(path: Path) -> Record:
    """The record in a file.

    Raises:
        ScoreError: it is none.
    """
    try:
        return Record.model_validate_json(path.read_bytes())
    except ValidationError:
        raise ScoreError(
            f"{path} is no record of a run of this version of capsnet-score; --overwrite begins again"
        ) from None


def write_record(path: Path, record: Record) -> None:
    """Replace the record: whoever looks, and whenever it stops, there is the old one or the new one."""
    aside = path.with_name(f".{path.name}.partial")
    with aside.open("w", encoding="utf-8") as file:
        file.write(record.model_dump_json(indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def check_same(before: Asked, now: Asked, out: str) -> None:
    """A run may go on: it is asked for what it was begun with.

    Raises:
        ScoreError: something else is; names what differs.
    """
    then, today = before.model_dump(), now.model_dump()
    differing = [f"{name} was {then[name]}, now {today[name]}" for name in then if then[name] != today[name]]
    if differing:
        raise ScoreError(f"{out} cannot be resumed: {'; '.join(differing)}; --overwrite begins again")


def skip_done(pictures: Upcoming, record: Record, out: str) -> NamesHash:
    """Take the pictures that are done; those that are left are to be scored.

    Raises:
        ScoreError: they are not those of then.
    """
    names, found = NamesHash(), 0
    for name in islice(row_names(pictures, record.asked.views), record.pictures):
        names.add(name)
        found += 1
    if found == record.pictures and names.hexdigest() == record.names_sha256:
        return names
    came = f"there are only {found}" if found < record.pictures else "the names up to there are others"
    raise ScoreError(
        f"{out} cannot be resumed: {record.pictures} pictures were done, and now {came}; "
        "give the same ones, or begin again with --overwrite"
    )
