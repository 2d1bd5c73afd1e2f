"""One line for a user, without what only programmers read."""

import pytest

from export.cli import main as capsnet_export
from export.contract.one_line import one_line
from tests.support.paths import ROOT


def test_an_error_of_the_system_is_its_file_and_reason(tmp_path):
    with pytest.raises(OSError, match="Errno 2") as caught:
        (tmp_path / "missing").read_text()
    assert one_line(caught.value) == f"{tmp_path / 'missing'}: No such file or directory"


def test_any_other_error_says_what_it_says():
    assert one_line(ValueError("no such thing")) == "no such thing"
    assert one_line(OSError("the disk is away")) == "the disk is away"


def test_capsnet_export_says_it_so(tmp_path, capsys):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit) as ended:
        capsnet_export(["triton", str(ROOT / "models" / "capsnet-mnist"), "--out", str(file / "repository")])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said == f"capsnet-export: {file}: File exists\n"
