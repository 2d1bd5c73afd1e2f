"""The code blocks of the documentation: found, run as a reader would, and compared with what they promise."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

CODE = {"sh", "python", "json"}  # what is run or compared
PROSE = {"text", "toml", "yaml"}  # what is shown
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
MARK = re.compile(r"<!-- not run: (.+?) -->\s*\Z")
ADDRESS = "localhost:8000"
GRPC_ADDRESS = "localhost:8001"
ADMIN_KEY = "of-the-administrator"  # as $ADMIN_KEY
ELLIPSIS = "..."
TOLERANCE = 1e-3  # of numbers, which differ from processor to processor
FAILED_REQUEST = 22  # curl's exit status, with --fail-with-body


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        language: the word after the fence.
        text: what is in it, without the fence's indentation.
        line: of the page, where the fence opens.
        not_run: why a test cannot run it, from a comment before it; None if it can.
    """

    language: str
    text: str
    line: int
    not_run: str | None


def pages() -> list[Path]:
    """The pages whose blocks are run: what people write, not what experiments report."""
    written = [page for page in (ROOT / "docs").rglob("*.md") if "results" not in page.parts]
    return sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *written])


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text()
    for found in FENCE.finditer(text):
        _, language, inside = found.groups()
        mark = MARK.search(text[: found.start()])
        line = text.count("\n", 0, found.start()) + 1
        yield Block(language, textwrap.dedent(inside), line, mark and mark[1])


def parsed_answer(text: str) -> Any:
    """JSON in which `...` stands for what is left out, in a list, in an object or at the end of a text."""
    written, opened = "", ""
    for piece in re.findall(r'"(?:[^"\\]|\\.)*"|\.\.\.|.', text, re.DOTALL):
        if piece in {"{", "["}:
            opened += piece
        elif piece in {"}", "]"}:
            opened = opened[:-1]
        if piece == ELLIPSIS:
            piece = f'"{ELLIPSIS}"' if opened[-1] == "[" else f'"{ELLIPSIS}": null'
        written += piece
    return json.loads(written)


def difference(told: Any, came: Any, where: str = "the answer") -> str | None:
    """How an answer differs from what a page tells; None if it does not.

    Numbers may differ by a thousandth; `<...>` stands for any text, `...` for whatever follows.
    """
    if isinstance(told, dict) and isinstance(came, dict):
        return _difference_of_objects(told, came, where)
    if isinstance(told, list) and isinstance(came, list):
        shown = [one for one in told if one != ELLIPSIS]
        if len(came) < len(shown) or (len(came) > len(shown) and ELLIPSIS not in told):
            return f"{where} has {len(came)} entries, not {len(shown)}"
        found = (difference(*pair, f"{where}[{n}]") for n, pair in enumerate(zip(shown, came, strict=False)))
        return next(filter(None, found), None)
    if type(told) is float and type(came) in {int, float}:
        return None if abs(told - came) <= TOLERANCE else f"{where} is {came}, not {told}"
    if isinstance(told, str) and isinstance(came, str):
        is_any = re.fullmatch("<.*>", told) is not None
        begins = told.endswith(ELLIPSIS) and came.startswith(told.removesuffix(ELLIPSIS))
        return None if is_any or begins or told == came else f"{where} is {came!r}, not {told!r}"
    return None if told == came else f"{where} is {came!r}, not {told!r}"


def _difference_of_objects(told: dict[str, Any], came: dict[str, Any], where: str) -> str | None:
    names = told.keys() - {ELLIPSIS}
    if missing := names - came.keys():
        return f"{where} lacks {', '.join(sorted(missing))}"
    if ELLIPSIS not in told and (more := came.keys() - names):
        return f"{where} also has {', '.join(sorted(more))}"
    found = (difference(told[name], came[name], f"{where}.{name}") for name in told if name != ELLIPSIS)
    return next(filter(None, found), None)


class Reader:
    """Somebody who pastes blocks into a terminal, in a folder like the repository's root.

    Args:
        folder: where the commands run; made, with links to the repository's docs and to `shared`'s files.
        shared: what all pages share: models/, pictures/, new.jpg.
        port: of the service that answers in place of one on port 8000.
        grpc_address: where it answers gRPC, in place of port 8001.
    """

    def __init__(self, folder: Path, shared: Path, port: int, grpc_address: str) -> None:
        self._folder = folder
        self._addresses = {ADDRESS: f"localhost:{port}", GRPC_ADDRESS: grpc_address}
        folder.mkdir()
        for target in (ROOT / "docs", *shared.iterdir()):
            (folder / target.name).symlink_to(target)
        self._write_commands()
        (folder / "curlrc").mkdir()
        (folder / "curlrc" / ".curlrc").write_text("silent\nshow-error\nfail-with-body\n")
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CAPSNET_")},
            "CAPSNET_CACHE": str(shared.parent / "cache"),
            "CAPSNET_OPTIMIZE": "false",  # what is served is told elsewhere to be the same
            "CURL_HOME": str(folder / "curlrc"),
            "ADMIN_KEY": ADMIN_KEY,
            "PYTHONPATH": str(ROOT),
            "RAY_ADDRESS": "local",  # not a cluster of another test
        }

    def run(self, block: Block, *, refused: bool = False) -> str:
        """Run a block of shell or Python; returns what it prints.

        Args:
            block: what to run.
            refused: whether the service is to answer with an error.
        """
        text = block.text
        for told, used in self._addresses.items():
            text = text.replace(told, used)
        program = ["bash", "-euo", "pipefail", "-c"] if block.language == "sh" else [sys.executable, "-c"]
        done = subprocess.run(
            [*program, text], cwd=self._folder, env=self._environment, capture_output=True, text=True
        )
        expected = FAILED_REQUEST if refused else 0
        assert done.returncode == expected, f"line {block.line}: {done.stdout[-500:]}{done.stderr[-3000:]}"
        return done.stdout

    def _write_commands(self) -> None:
        """.venv/bin, as `make dev` would install it, of the code that is tested."""
        programs = self._folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        (programs / "python").symlink_to(sys.executable)
        scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
        for name, entry in scripts.items():
            module, _, function = entry.partition(":")
            lines = [f"#!{sys.executable}", "import sys", f"from {module} import {function} as main"]
            if name == "capsnet-score":  # it asks port 8000 unless it is told another
                asks = f"sys.argv += ['--url', 'http://{self._addresses[ADDRESS]}']"
                lines.append(f"if not {{'--local', '--ray'}} & {{*sys.argv}}: {asks}")
            (programs / name).write_text("\n".join([*lines, "sys.exit(main())", ""]))
            (programs / name).chmod(0o755)


def has_curl() -> bool:
    """Whether the shell blocks can be run."""
    return shutil.which("curl") is not None
