import json

import pytest

from training.runs.checkpoint import Progress
from training.runs.log import Log


def row(step):
    return json.dumps({"kind": "train", "step": step}) + "\n"


@pytest.mark.parametrize(
    "damage",
    [
        "garbage\n",
        "\0\0\0\0\n",
        "{}\n",
        "3\n",
        '{"step": "x"}\n',
        "\udcff\n",
        '{"step": Infinity}\n',
        100_000 * "[" + "\n",
    ],
)
def test_damaged_rows_are_dropped_with_a_warning(tmp_path, caplog, damage):
    path = tmp_path / "log.jsonl"
    path.write_text(row(1) + damage + row(2) + row(3), errors="surrogateescape")
    with Log(tmp_path, 2) as log:
        log.write(Progress(step=3), "train", loss=0.5)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]
    assert f"{path}: damaged rows dropped: 1" in caplog.text


def test_a_row_that_was_cut_short_is_dropped(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(row(1) + row(2)[:-1])
    with Log(tmp_path, 2):
        pass
    assert path.read_text() == row(1)
