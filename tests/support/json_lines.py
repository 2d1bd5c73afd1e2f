"""Files of JSON lines that another process may be writing."""

import json
from pathlib import Path
from typing import Any


def written_lines(file: Path) -> list[dict[str, Any]]:
    """What the lines of a file say; the last one counts once it is written to its end."""
    whole, _, _ = file.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]
