"""Reading and writing Parquet, a few rows at a time. Imported late: pyarrow is in the extra `parquet`."""

import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from export.contract.atomic_file import atomic_file
from service.score.picture_stream import Picture, PictureReadError, check_bytes, unreadable
from service.score.query import Row, ScoreError
from service.score.table import Columns, from_bytes, row_json, to_bytes

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    raise ScoreError(f"Parquet needs {error.name}: pip install -e '.[parquet]'") from None

FAULTS = (pa.ArrowException, OSError, UnicodeError)  # pyarrow takes no file's name that is not UTF-8
READ_ROWS = 16  # pictures taken from a file at a time
READ_BUFFER_BYTES = 2**20
GROUP_BYTES = 2**23  # of JSON lines that become a row group at once


class RowGroups(NamedTuple):
    """Consecutive row groups of a Parquet file.

    Attributes:
        file: the file, open.
        first: the first row group.
        end: the row group after the last one.
        first_row: number of the first row in the file.
    """

    file: pa.NativeFile
    first: int
    end: int
    first_row: int


def in_parquet(
    path: Path | str, image_column: str | None, id_column: str | None, groups: RowGroups | None = None
) -> Iterator[Picture]:
    """The pictures of a Parquet file, or of some of its row groups, row by row.

    A picture is a file's bytes, or a struct of `bytes` and `path`, as Hugging Face datasets write it. Rows
    are named `set.parquet#12`, or `set.parquet#12/cat/7.png` if the struct has a path: the paths alone need
    not be unique. An `id_column` holds the names as they are.

    Raises:
        ScoreError: a column does not exist, or no column or several could hold pictures.
    """
    file, numbers, number = path, None, 0
    if groups is not None:
        file, numbers, number = groups.file, list(range(groups.first, groups.end)), groups.first_row
    try:
        # Without a buffer, or with pre_buffer, pyarrow reads the pictures of a whole row group at once.
        with pq.ParquetFile(file, buffer_size=READ_BUFFER_BYTES, pre_buffer=False) as opened:
            images = find_image_column(path, opened.schema_arrow, image_column, id_column)
            columns = [images] if id_column is None else [images, id_column]
            for rows in opened.iter_batches(READ_ROWS, row_groups=numbers, columns=columns):
                ids = rows.column(id_column) if id_column is not None else [None] * len(rows)
                for cell, given in zip(rows.column(images), ids, strict=True):
                    yield _picture(path, number, cell, given)
                    number += 1
    except FAULTS as error:
        yield unreadable(str(path), f"the Parquet file cannot be read further: {error}")


def write_parquet(rows: Path, out: Path, columns: Columns) -> None:
    """Turn the JSON lines of a finished run into a Parquet file, atomically.

    An unfinished Parquet file has no footer and would be lost if the process is killed. JSON lines are not,
    so they hold the rows until the run is finished.
    """
    schema = make_schema(columns)
    with (
        atomic_file(out) as aside,
        aside.open("wb") as file,
        rows.open("rb") as lines,
        pq.ParquetWriter(file, schema) as writer,
    ):
        while group := lines.readlines(GROUP_BYTES):
            records = [_record(json.loads(from_bytes(line)), columns) for line in group]
            writer.write_table(pa.Table.from_pylist(records, schema))


def make_table(rows: Sequence[Row], columns: Columns) -> pa.Table:
    """The rows as a table, as `write_parquet` writes them."""
    return pa.Table.from_pylist([_record(row_json(row), columns) for row in rows], make_schema(columns))


def check_columns(path: Path, image_column: str | None, id_column: str | None) -> None:
    """Check that a file has the columns; one that cannot be read passes, as reading it says so.

    Raises:
        ScoreError: as of `find_image_column`.
    """
    try:
        schema = pq.read_schema(path)
    except FAULTS:
        return
    find_image_column(path, schema, image_column, id_column)


def find_image_column(
    path: Path | str, schema: pa.Schema, requested: str | None, id_column: str | None
) -> str:
    """The column with the pictures; checks that there is the column of the names, too.

    Raises:
        ScoreError: a column does not exist or several have its name, or no column or several could hold
            pictures.
    """
    images = _image_column(path, schema, requested)
    if id_column == images:
        raise ScoreError(f"{path}: --id-column {images} is the column with the pictures")
    for name in {images, id_column} - {None}:
        if (count := schema.names.count(name)) > 1:
            raise ScoreError(f"{path} has {count} columns {name!r}")
    if id_column is not None and id_column not in schema.names:
        raise _no_column(path, id_column, schema)
    return images


def _image_column(path: Path | str, schema: pa.Schema, requested: str | None) -> str:
    if requested is not None and requested not in schema.names:
        raise _no_column(path, requested, schema)
    candidates = [field.name for field in schema if _may_hold_pictures(field.type)]
    if requested is not None and requested not in candidates:
        raise ScoreError(
            f"{path}: the column {requested!r} is {schema.field(requested).type}; pictures are binary, or a "
            "struct with a binary field `bytes`"
        )
    if requested is None and len(candidates) != 1:
        found = f"the columns {', '.join(candidates)} could all" if candidates else "no column can"
        remedy = "choose one with --image-column" if candidates else f"there are {', '.join(schema.names)}"
        raise ScoreError(f"{path}: {found} hold pictures; {remedy}")
    return requested or candidates[0]


def _may_hold_pictures(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" and _is_binary(field.type) for field in kind)
    return _is_binary(kind)


def _is_binary(kind: pa.DataType) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(test(kind) for test in tests)


def _no_column(path: Path | str, name: str, schema: pa.Schema) -> ScoreError:
    return ScoreError(f"{path} has no column {name!r}; there are {', '.join(schema.names)}")


def _picture(path: Path | str, number: int, cell: pa.Scalar, given: pa.Scalar | None) -> Picture:
    """The picture in a cell of the image column, with the name in the cell of the id column."""
    content, inner = cell, None
    if isinstance(cell, pa.StructScalar) and cell.is_valid:
        content = cell["bytes"]
        inner = _text(cell["path"]) if "path" in cell else None
    name = f"{path}#{number}/{inner}" if inner else f"{path}#{number}"
    if given is not None:
        name = _text(given) or name
    return Picture(name, partial(_read_cell, content), source=str(path))


def _text(cell: pa.Scalar) -> str | None:
    """A cell as a name, None if it is empty. Bytes that are not UTF-8 are kept, as in names of files."""
    if isinstance(cell, pa.DictionaryScalar):
        cell = cell.value
    if not cell.is_valid:
        return None
    if isinstance(cell, pa.BinaryScalar):  # which strings are, too
        return os.fsdecode(cell.as_buffer().to_pybytes())
    return str(cell.as_py())


def _read_cell(content: pa.Scalar, limit: int) -> bytes:
    if not content.is_valid:
        raise PictureReadError("the row holds no bytes")
    buffer = content.as_buffer()
    check_bytes(buffer.size, limit)
    return bytes(buffer)


def make_schema(columns: Columns) -> pa.Schema:
    """The columns of a table in Parquet."""
    number = pa.float32()
    fields: Sequence[tuple[str, pa.DataType]] = [
        ("path", pa.string()),
        ("label", pa.string()),
        ("probability", number),
        ("confident", pa.bool_()),
        ("blank", pa.bool_()),
        *((name, number) for name in columns.class_names),
        *((name, pa.list_(number)) for name in columns.pose_names),
    ]
    return pa.schema(fields)


def _record(row: dict[str, Any], columns: Columns) -> dict[str, object]:
    """A row from its JSON line."""
    # Strings in Parquet are valid text; other bytes of a name are written as \xe9.
    path = to_bytes(row["path"]).decode("utf-8", "backslashreplace")
    cells: dict[str, object] = {name: row[name] for name in ("label", "probability", "confident", "blank")}
    cells["path"] = path
    for capsule in row["classes"]:
        cells[capsule["label"]] = capsule["probability"]
        if columns.poses:
            cells[f"{capsule['label']}_pose"] = capsule["pose"]
    return cells
