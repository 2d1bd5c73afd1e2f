"""Carry out an experiment by name, and write what it found."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from training import checkpoint
from training.experiments import EXPERIMENTS, markdown
from training.experiments.lab import Lab, Row

QUICK_FORM = "**Quick form**: narrower networks, fewer images and steps than the paper's. "


def carry_out(name: str, lab: Lab, quick: bool) -> Path:
    """Measure what has not been measured yet, then write the report.

    Args:
        name: a key of EXPERIMENTS.
        lab: where; its `out` may hold rows of the same form of the experiment.
        quick: the form for minutes of a CPU, not the paper's.

    Returns:
        The report, Markdown.

    Raises:
        ValueError: `out` holds another experiment, or the other form of it.
    """
    _claim(lab.out, name, quick)
    experiment = _module(name)
    experiment.run(lab, experiment.QUICK if quick else experiment.FULL)
    return write_report(lab.out)


def write_report(out: Path) -> Path:
    """Write report.md and figure.png of an experiment's folder from its rows.

    Raises:
        FileNotFoundError: the folder is not one of an experiment.
    """
    name, quick = _read_claim(out)
    file = out / "rows.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    text = f"# {EXPERIMENTS[name]}\n\n{section(name, quick, rows)}"
    if rows:
        _module(name).draw(rows, out / "figure.png")
        text += "\n![figure](figure.png)\n"
    checkpoint.write_atomically(out / "report.md", text)
    return out / "report.md"


def section(name: str, quick: bool, rows: list[Row]) -> str:
    """Tables of an experiment, and how they came about."""
    form = QUICK_FORM + markdown.settings(rows) + "\n\n" if quick else ""
    return f"{form}{_module(name).report(rows)}\n{markdown.origins(rows)}"


def write_page(folder: Path) -> Path:
    """Join the experiments in a folder into one page, `report.md`.

    Args:
        folder: holds one folder per experiment.

    Raises:
        FileNotFoundError: no experiment has been run there.
    """
    found = sorted(rows.parent for rows in folder.glob("*/rows.jsonl"))  # one without data has none
    if not found:
        raise FileNotFoundError(f"{folder} holds no experiment; run one: capsnet-train experiment table1")
    parts = ["# Experiments\n"]
    for out in found:
        report = write_report(out).read_text()
        parts.append("#" + report.replace("](figure.png)", f"]({out.name}/figure.png)"))
    checkpoint.write_atomically(folder / "report.md", "\n".join(parts))
    return folder / "report.md"


def _claim(out: Path, name: str, quick: bool) -> None:
    """Make the folder this experiment's, or see that it is."""
    claim = {"experiment": name, "quick": quick}
    file = out / "experiment.json"
    if file.exists() and json.loads(file.read_text()) != claim:
        raise ValueError(f"{out} holds {json.loads(file.read_text())}; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(file, json.dumps(claim) + "\n")


def _read_claim(out: Path) -> tuple[str, bool]:
    file = out / "experiment.json"
    if not file.exists():
        raise FileNotFoundError(f"{out} is not the folder of an experiment: it has no experiment.json")
    claim = json.loads(file.read_text())
    return claim["experiment"], claim["quick"]


def _module(name: str) -> Any:
    """The experiment: FULL and QUICK plans, run(lab, plan), report(rows), draw(rows, file)."""
    return import_module(f"training.experiments.{name}")
