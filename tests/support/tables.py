"""The tables that capsnet-score writes."""

import csv
from io import StringIO
from pathlib import Path


def read_csv(path: Path) -> list[dict[str, str]]:
    """Its rows, by column."""
    return list(csv.DictReader(StringIO(path.read_text())))
