"""Reading and writing Parquet, a few rows at a time. Imported late: pyarrow is in the extra `parquet`."""

import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from service.score.picture_stream import Picture, UnreadablePictureError, check_bytes, unreadable
from service.score.query import ScoreError
from service.score.table import Columns, from_bytes, to_bytes

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    raise ScoreError(f"Parquet needs {error.name}: pip install -e '.[parquet]'") from None

READ_ROWS = 16  # pictures taken from a file at a time
READ_BUFFER_BYTES = 2**20
GROUP_BYTES = 2**23  # of JSON lines that become a row group at once


def in_parquet(path: Path, image_column: str | None, id_column: str | None) -> Iterator[Picture]:
    """The pictures of a Parquet file, row by row.

    A picture is a file's bytes, or a struct of `bytes` and `path`, as Hugging Face datasets write it. Rows
    are named `set.parquet#12`, or `set.parquet#12/cat/7.png` if the struct has a path: the paths alone need
    not be unique. An `id_column` holds the names as they are.

    Raises:
        ScoreError: a column does not exist, or no column or several could hold pictures.
    """
    try:
        # Without a buffer, or with pre_buffer, pyarrow reads the pictures of a whole row group at once.
        with pq.ParquetFile(path, buffer_size=READ_BUFFER_BYTES, pre_buffer=False) as file:
            images = _image_column(path, file.schema_arrow, image_column)
            if id_column is not None and id_column not in file.schema_arrow.names:
                raise _no_column(path, id_column, file.schema_arrow)
            columns = [images] if id_column is None else [images, id_column]
            number = 0
            for rows in file.iter_batches(READ_ROWS, columns=columns):
                ids = rows.column(id_column) if id_column is not None else [None] * len(rows)
                for cell, given in zip(rows.column(images), ids, strict=True):
                    yield _picture(path, number, cell, given)
                    number += 1
    except (pa.ArrowException, OSError) as error:
        yield unreadable(str(path), f"the Parquet file cannot be read further: {error}")


def write_parquet(rows: Path, out: Path, columns: Columns) -> None:
    """Turn the JSON lines of a finished run into a Parquet file, atomically.

    An unfinished Parquet file has no footer and would be lost if the process is killed. JSON lines are not,
    so they hold the rows until the run is finished.
    """
    schema = _schema(columns)
    aside = out.with_name(f".{out.name}.partial")
    with aside.open("wb") as file, rows.open("rb") as lines:
        with pq.ParquetWriter(file, schema) as writer:
            while group := lines.readlines(GROUP_BYTES):
                records = [_record(json.loads(from_bytes(line)), columns) for line in group]
                writer.write_table(pa.Table.from_pylist(records, schema))
        file.flush()
        os.fsync(file.fileno())
    aside.replace(out)


def _image_column(path: Path, schema: pa.Schema, requested: str | None) -> str:
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


def _no_column(path: Path, name: str, schema: pa.Schema) -> ScoreError:
    return ScoreError(f"{path} has no column {name!r}; there are {', '.join(schema.names)}")


def _picture(path: Path, number: int, cell: pa.Scalar, given: pa.Scalar | None) -> Picture:
    """The picture in a cell of the image column, with the name in the cell of the id column."""
    content, inner = cell, None
    if isinstance(cell, pa.StructScalar) and cell.is_valid:
        content = cell["bytes"]
        inner = cell["path"].as_py() if "path" in cell else None
    name = f"{path}#{number}/{inner}" if inner else f"{path}#{number}"
    if given is not None and given.is_valid:
        name = str(given.as_py())
    return Picture(name, partial(_read_cell, content), source=str(path))


def _read_cell(content: pa.Scalar, limit: int) -> bytes:
    if not content.is_valid:
        raise UnreadablePictureError("the row holds no bytes")
    buffer = content.as_buffer()
    check_bytes(buffer.size, limit)
    return bytes(buffer)


def _schema(columns: Columns) -> pa.Schema:
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
