"""Write the tables of the pages from the code, with `python -m docs.generate` or `make docs`.

A table lies between two comments of its page, `<!-- table: settings -->` and `<!-- end of table -->`. Each
fact has one home:

settings    service/settings.py, the docstring of `Settings`
routes      the OpenAPI document of the service
errors      service/errors.py, the classes
metrics     what the service answers to Prometheus
client      capsnet/client.py, the methods of `Client`
presets     training/presets/*.toml, the first comment and the values
experiments training/experiments/__init__.py

Two longer things are only in the built site, from files in build/tables that pages take in with a line such
as `--8<-- "commands.md"`:

commands.md    what each command prints for --help
cards/*.md     the model cards of the newest shipped bundles
"""

import asyncio
import inspect
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr
from pydantic_core import PydanticUndefined

from capsnet import Client
from export.contract.manifest import newest_version
from service import errors
from service.app import create_app
from service.settings import PREFIX, Settings
from training.config import load_preset, presets
from training.experiments import EXPERIMENTS

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs"
TAKEN_IN = ROOT / "build" / "tables"
TABLE = re.compile(r"(?<=<!-- table: )(\w+) -->\n.*?(?=<!-- end of table -->)", re.DOTALL)
PROGRAMS = {
    "capsnet-serve": [""],
    "capsnet-score": [""],
    "capsnet-train": ["", "fit", "evaluate", "inspect", "experiment", "report", "download", "make"],
    "capsnet-export": ["", "bundle", "evaluate", "threshold", "optimize", "triton"],
}
NETWORKS = {"capsnet": "CapsNet", "matrix-capsnet": "matrix capsules", "cnn": "CNN"}
SENTENCE_END = re.compile(r"(?<!Sec)(?<!al)\.\s+(?=[A-Z\"])|:\s+(?=\d|[A-Z] = )|;\s+")


def main() -> None:
    """Write the tables of today's code into the pages."""
    for page, text in outdated_pages(tables()).items():
        page.write_text(text)


def tables() -> dict[str, str]:
    """The tables of the pages, by name."""
    document, scraped = asyncio.run(answers_of_a_service())
    return {
        "settings": settings_table(),
        "routes": routes_table(document),
        "errors": errors_table(),
        "metrics": metrics_table(scraped),
        "client": client_table(),
        "presets": presets_table(),
        "experiments": experiments_table(),
    }


def outdated_pages(made: Mapping[str, str], folder: Path = PAGES) -> dict[Path, str]:
    """The pages that do not have these tables, each with the text that it should have."""
    written = {page: page.read_text() for page in sorted(folder.rglob("*.md"))}
    updated = {
        page: TABLE.sub(lambda found: f"{found[1]} -->\n\n{made[found[1]]}\n", text)
        for page, text in written.items()
    }
    return {page: text for page, text in updated.items() if text != written[page]}


def write_taken_in() -> None:
    """Write what pages take in when the site is built."""
    (TAKEN_IN / "cards").mkdir(parents=True, exist_ok=True)
    (TAKEN_IN / "commands.md").write_text(command_help())
    for model in sorted((ROOT / "models").iterdir()):
        (TAKEN_IN / "cards" / f"{model.name}.md").write_text(model_card(model))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    assert not any("\n" in cell for line in lines for cell in line), "a line break would end the table"
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |\n" for line in lines)


def settings_table() -> str:
    """Every environment variable of the service, its default and its meaning."""
    meanings = attributes_of(Settings)
    rows = []
    for name, field in Settings.model_fields.items():
        assert field.default is not PydanticUndefined, f"{name} has no default"
        rows.append((variable(name), default_of(field.default), with_variables(meanings[name])))
    return table(["variable", "default", "meaning"], rows)


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"`{PREFIX}{name.upper()}`"


def with_variables(text: str) -> str:
    """A text in which settings are named as in the environment."""
    return re.sub(
        r"`(\w+)`", lambda code: variable(code[1]) if code[1] in Settings.model_fields else code[0], text
    )


def default_of(value: object) -> str:
    """A default as the environment would have it."""
    if value in (None, "") or isinstance(value, SecretStr):
        return "(unset)"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def attributes_of(documented: type) -> dict[str, str]:
    """What a Google-style docstring says of each attribute."""
    _, _, section = (inspect.getdoc(documented) or "").partition("Attributes:\n")
    entries = re.split(r"^(\w+): ", textwrap.dedent(section), flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)}


async def answers_of_a_service() -> tuple[dict[str, Any], str]:
    """The OpenAPI document and the metrics of a service without models, which listens on no port."""
    defaults = {name: field.default for name, field in Settings.model_fields.items()}  # not the environment's
    with tempfile.TemporaryDirectory() as empty:
        app = create_app(Settings(**{**defaults, "models": empty, "device": "cpu"}))
        async with app.router.lifespan_context(app) as state:

            async def started(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
                await app({**scope, "state": dict(state or {})}, receive, send)

            transport = httpx.ASGITransport(started)
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
                document, metrics = await client.get("/openapi.json"), await client.get("/metrics")
                return document.raise_for_status().json(), metrics.raise_for_status().text


def routes_table(document: dict[str, Any]) -> str:
    """Every route, from the OpenAPI document of the service."""
    rows = [
        (f"`{method.upper()} {path}`", operation["summary"], ", ".join(operation["tags"]))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    return table(["route", "purpose", "group"], rows)


def errors_table() -> str:
    """Every type of problem+json, by status."""
    rows = {(kind.status, kind.slug): first_paragraph(kind) for kind in leaves(errors.ServiceError)}
    rows |= {(status, slug): f"{title}." for status, (slug, title) in errors.FRAMEWORK.items()}
    listed = ((str(status), f"`/problems/{slug}`", about) for (status, slug), about in sorted(rows.items()))
    return table(["status", "type", "when"], listed)


def first_paragraph(documented: object) -> str:
    """The first paragraph of a docstring, as one line."""
    return " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())


def leaves(kind: type[errors.ServiceError]) -> Iterator[type[errors.ServiceError]]:
    """The classes that are raised, the first of each slug."""
    for below in kind.__subclasses__():
        yield from leaves(below)
        yield below


def metrics_table(scraped: str) -> str:
    """Every metric of the service, but for those of the process, from what Prometheus is told."""
    found = re.findall(r"# HELP (capsnet_\w+) (.*)\n# TYPE \w+ (\w+)", scraped)
    return table(["metric", "type", "meaning"], ((f"`{name}`", kind, about) for name, about, kind in found))


def client_table() -> str:
    """Every method of the client, and the first sentence about it."""
    methods = {
        name: method for name, method in inspect.getmembers(Client, inspect.isfunction) if name[0] != "_"
    }
    rows = ((f"`{name}`", f"{first_paragraph(method).rstrip('.')}.") for name, method in methods.items())
    return table(["method", "what it does"], rows)


def presets_table() -> str:
    """Every preset: its network, data and length, and the first sentence of its comment."""
    rows = []
    for name in presets():
        config = load_preset(name)
        network, epochs = NETWORKS[config.model.architecture], f"{config.optimizer.epochs:,}"
        rows.append((f"`{name}`", f"{network} on {config.data.name}, {epochs} epochs", first_sentence(name)))
    return table(["preset", "trains", "what it is"], rows)


def experiments_table() -> str:
    """Every experiment, and the table or figure of the papers that it is."""
    return table(["name", "what it measures"], ((f"`{name}`", title) for name, title in EXPERIMENTS.items()))


def first_sentence(preset: str) -> str:
    """The first sentence of the comment at the head of a preset."""
    lines = (ROOT / "training" / "presets" / f"{preset}.toml").read_text().splitlines()
    comment = " ".join(line.removeprefix("#").strip() for line in lines[: lines.index("")])
    return SENTENCE_END.split(comment)[0].rstrip(".") + "."


def command_help() -> str:
    """What every command prints for --help, a section for each program."""
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    parts = []
    for program, commands in PROGRAMS.items():
        parts.append(f"## {program}\n")
        for command in commands:
            if command:
                parts.append(f"### {program} {command}\n")
            parts.append(f"```text\n{help_of(entries[program], command)}```\n")
    return "\n".join(parts)


def help_of(entry: str, command: str) -> str:
    """What `module:function` prints for --help, at a width that fits a page."""
    module, _, function = entry.partition(":")
    program = f"from {module} import {function}; {function}()"
    environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    asked = [sys.executable, "-c", program, *command.split(), "--help"]
    return subprocess.run(asked, env=environment, check=True, capture_output=True, text=True).stdout


def model_card(model: Path) -> str:
    """The card of the newest version of a shipped model."""
    return (newest_version(model) / "MODEL_CARD.md").read_text()


if __name__ == "__main__":
    main()
