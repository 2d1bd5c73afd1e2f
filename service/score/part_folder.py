"""The folder that a run on many machines writes: a Parquet file for each shard, its errors, and the record.

A file appears when it is complete, whatever happens to the process that writes it, and says itself how many
pictures it stands for. So the files that are there are all that a resumed run has to know. Programs that read
folders of Parquet files leave out names that begin with `_` or `.`.
"""

import json
import re
from collections import Counter
from collections.abc import AsyncIterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileSystem, FileType
from pydantic import BaseModel, ConfigDict, ValidationError

from service.score.parquet import make_schema, make_table
from service.score.query import Outcome, Row, ScoreError, Skipped
from service.score.run_record import RunSpec
from service.score.shards import RECORD, open_place
from service.score.table import Columns, error_lines

PART = re.compile(r"part-(\d{6,})\.parquet")
ASIDE = ".part-"
ERRORS = "_errors"
FACTS = b"capsnet_score"  # in the metadata of a part
GROUP_ROWS = 4096  # rows that are written at once
READERS = 16  # parts that are looked at side by side


@dataclass(frozen=True)
class PartFacts:
    """What a part stands for: the number of rows of each label, and of pictures without a row."""

    labels: Mapping[str, int]
    skipped: int


class PartsRecord(BaseModel):
    """What a run was begun with; a resumed run must be the same.

    Attributes:
        run: tells its parts from those of another run in the same folder.
        spec: what determines its rows.
        part_size: pictures of a part, as the command said.
        parts: number of parts.
        names_sha256: hash of the names of the pictures.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    spec: RunSpec
    part_size: int
    parts: int
    names_sha256: str


@dataclass(frozen=True)
class PartFolder:
    """The folder of a table, on any file system.

    Attributes:
        place: an absolute path, or an address; every process opens it by itself.
        shown: the folder as the command names it.
        run: of the record, whose parts are meant.
    """

    place: str
    shown: str
    run: str = ""

    def has_record(self) -> bool:
        """Whether a run has begun here."""
        return RECORD in self.names()

    def record(self) -> PartsRecord | None:
        """The record of a run that has begun here.

        Raises:
            ScoreError: the file holds none.
        """
        if not self.has_record():
            return None
        files, path = open_place(self.place)
        with files.open_input_stream(f"{path}/{RECORD}") as file:
            content = bytes(file.read())
        try:
            return PartsRecord.model_validate_json(content)
        except ValidationError:
            raise ScoreError(
                f"{self.shown}/{RECORD} is no record of a run of this version of capsnet-score; "
                "--overwrite starts over"
            ) from None

    def begin(self, record: PartsRecord) -> None:
        """Write the record of a new run; of an earlier one nothing stays."""
        files, path = open_place(self.place)
        for name in self.names():
            if PART.fullmatch(name) or name.startswith(ASIDE):
                files.delete_file(f"{path}/{name}")
        if files.get_file_info(f"{path}/{ERRORS}").type == FileType.Directory:
            files.delete_dir(f"{path}/{ERRORS}")
        files.create_dir(path, recursive=True)
        _write(
            files, f"{path}/{RECORD}", f"{path}/.{RECORD}", record.model_dump_json(indent=2).encode() + b"\n"
        )

    def names(self) -> list[str]:
        """The names in the folder; none if there is no such folder.

        Raises:
            ScoreError: it is a file.
        """
        files, path = open_place(self.place)
        kind = files.get_file_info(path).type
        if kind == FileType.File:
            raise ScoreError(f"--out {self.shown} is a file; --ray writes a folder of Parquet files")
        if kind == FileType.NotFound:
            return []
        return [info.base_name for info in files.get_file_info(FileSelector(path))]

    def done(self) -> dict[int, PartFacts]:
        """The parts of the run that are complete, by their number."""
        files, path = open_place(self.place)
        found = [match for name in self.names() if (match := PART.fullmatch(name))]
        with ThreadPoolExecutor(READERS) as readers:  # of an object store, each answer takes a while
            facts = list(readers.map(lambda match: _facts(files, f"{path}/{match[0]}", self.run), found))
        return {int(match[1]): one for match, one in zip(found, facts, strict=True) if one is not None}

    def is_taken(self) -> bool:
        """Whether a command has begun another run here meanwhile, be it one of another version."""
        try:
            there = self.record()
        except ScoreError:
            return True
        return there is not None and there.run != self.run

    def finish(self) -> None:
        """Remove what killed processes have left, and the folder of the errors if there are none."""
        files, path = open_place(self.place)
        for name in self.names():
            if name.startswith(ASIDE):
                files.delete_file(f"{path}/{name}")
        errors = f"{path}/{ERRORS}"
        if files.get_file_info(errors).type == FileType.Directory and not files.get_file_info(
            FileSelector(errors)
        ):
            files.delete_dir(errors)

    async def write(
        self, number: int, columns: Columns, outcomes: AsyncIterable[Sequence[Outcome]]
    ) -> PartFacts:
        """Write a part; whoever writes it again writes the same.

        Raises:
            ScoreError: another run has begun here meanwhile.
        """
        files, path = open_place(self.place)
        aside = f"{path}/{ASIDE}{number:06}.{uuid4().hex}"
        try:
            facts, skipped = await self._write_rows(files, aside, columns, outcomes)
            self._refuse_taken()
            self._write_errors(files, f"{path}/{ERRORS}/{number:06}.jsonl", skipped)
            self._put_in_place(files, aside, f"{path}/part-{number:06}.parquet")
        except BaseException:  # where a disk is full, each try would leave one more
            with suppress(OSError):
                files.delete_file(aside)
            raise
        return facts

    async def _write_rows(
        self, files: FileSystem, path: str, columns: Columns, outcomes: AsyncIterable[Sequence[Outcome]]
    ) -> tuple[PartFacts, list[Skipped]]:
        labels: Counter[str] = Counter()
        skipped: list[Skipped] = []
        rows: list[Row] = []
        with files.open_output_stream(path) as file, pq.ParquetWriter(file, make_schema(columns)) as writer:
            async for some in outcomes:
                rows += [one for one in some if isinstance(one, Row)]
                skipped += [one for one in some if isinstance(one, Skipped)]
                labels.update(one.classes[0].label for one in some if isinstance(one, Row))
                if len(rows) >= GROUP_ROWS:
                    writer.write_table(make_table(rows, columns))
                    rows = []
            writer.write_table(make_table(rows, columns))
            facts = PartFacts(dict(labels), len(skipped))
            writer.add_key_value_metadata(
                {FACTS: json.dumps({"run": self.run, "labels": facts.labels, "skipped": facts.skipped})}
            )
        return facts, skipped

    def _refuse_taken(self) -> None:
        if self.is_taken():
            raise ScoreError(f"another command has begun a new run in {self.shown}")

    def _put_in_place(self, files: FileSystem, aside: str, part: str) -> None:
        try:
            files.move(aside, part)
        except FileNotFoundError:  # another command of this run has tidied up, if it has the part
            if _facts(files, part, self.run) is None:
                raise

    @staticmethod
    def _write_errors(files: FileSystem, path: str, skipped: Sequence[Skipped]) -> None:
        """Before the part, whose file says that all is done."""
        if skipped:
            files.create_dir(path.rpartition("/")[0], recursive=True)
            with files.open_output_stream(path) as file:
                file.write(error_lines(skipped))
        elif files.get_file_info(path).type == FileType.File:  # of a process that was killed
            files.delete_file(path)


def _write(files: FileSystem, path: str, aside: str, content: bytes) -> None:
    with files.open_output_stream(aside) as file:
        file.write(content)
    files.move(aside, path)


def _facts(files: FileSystem, path: str, run: str) -> PartFacts | None:
    """What the part says of itself; None if it is of another run, or not whole, as after a power failure."""
    try:
        with files.open_input_file(path) as file:
            metadata = pq.read_metadata(file).metadata or {}
        said = json.loads(metadata[FACTS])
        return PartFacts(said["labels"], said["skipped"]) if said["run"] == run else None
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError):
        return None
