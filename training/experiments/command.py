"""Runs an experiment by name and writes its report.

Beside its rows, an experiment's folder holds `experiment.json`: its name, its form, and whether everything
has been measured.
"""

import json
import os
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import distributed

from export.contract.atomic_file import write_atomically
from training.data.datasets import DATASETS
from training.data.readers.files import MissingDataError
from training.experiments import EXPERIMENTS, SABOUR_2017, SECTION_7, markdown
from training.experiments.cifar10_copy import part_of
from training.experiments.form import FORMS, Form
from training.experiments.quick import QUICK_FORM
from training.experiments.runner import ROWS, Row, Runner, data_sets, read_rows
from training.runs.lock import LOCK, lock_folder

FIGURE = "figure.png"
IN_PART = "**In part**: not everything has been measured; the same command continues.\n\n"
ON_SOME = "**In part**: everything has been measured on {}, nothing on other data.\n\n"


class MeasuredInPartError(MissingDataError):
    """The data for a part of an experiment is not here; what could be measured is in its report."""


@dataclass(frozen=True)
class Claim:
    """Which experiment a folder is of.

    Attributes:
        experiment: a key of EXPERIMENTS.
        form: how much of it is done.
        finished: whether everything has been measured.
        parts: data sets on which everything has been measured by `--on`, where it has not been on all.
    """

    experiment: str
    form: Form
    finished: bool = False
    parts: tuple[str, ...] = ()


def run_experiment(
    name: str, runner: Runner, form: Form, on: str | None = None, seed: int | None = None
) -> Path:
    """Measure what has not been measured yet, then write the report.

    Args:
        name: a key of EXPERIMENTS.
        runner: where; its `out` may hold rows of the same form of the experiment.
        form: how much of it is done.
        on: one of the experiment's data sets, to run its part alone; None runs all.
        seed: one of its seeds, to measure the networks of this one alone; None measures those of all.

    Returns:
        The report, Markdown.

    Raises:
        ValueError: it has no such form, part or seed; `out` holds another experiment, or another form of it,
            or what it holds is damaged; another command is at work in it; or torchrun has started several
            processes.
        MissingDataError: there is no data for it.
        MeasuredInPartError: there is none for the rest of it; the report of what there is has been written.
    """
    _refuse_several_processes()
    experiment = _experiment(name)
    if not hasattr(experiment, form.upper()):
        raise ValueError(f"{name} has no {form} form; {_with_form(form)}")
    plan = getattr(experiment, form.upper())
    sets = _sets(plan)
    if on is not None:
        plan = _part(name, plan, on)
    if seed is not None:
        plan = _of_seed(name, plan, seed)
    busy = f"another command runs an experiment in {runner.out}; wait for it, or choose another --out"
    with lock_folder(runner.out, busy):  # else rows would be lost
        before, rows = _claim_before(runner.out), runner.rows()
        claim = _claim(runner.out, name, form, on)
        try:
            experiment.run(runner, plan)
        except MissingDataError as missing:
            if not runner.rows():
                _give_up(runner.out)
                raise
            report = write_report(runner.out)
            raise MeasuredInPartError(f"measured in part, see {report}; the rest: {missing}") from None
        if before and runner.rows() == rows and (before.finished or seed is not None):
            claim = before  # what a part leaves as it was is as finished as it was
        elif seed is None:
            measured = [on] if on else _measured(sets, runner)
            parts = tuple(one for one in sets if one in {*claim.parts, *measured})
            finished = len(parts) == len(sets)
            claim = replace(claim, finished=finished, parts=() if finished else parts)
        _write_claim(runner.out, claim)
        return write_report(runner.out)


def _with_form(form: Form) -> str:
    """Which experiments have it."""
    found = [name for name in EXPERIMENTS if hasattr(_experiment(name), form.upper())]
    return f"there is one of {', '.join(found)}"


def _sets(plan: Any) -> list[str]:
    """The data sets by which a plan has parts."""
    return [key for key in getattr(plan, "networks", {}) if key in DATASETS]


def _measured(sets: list[str], runner: Runner) -> list[str]:
    """The data sets that a plan for all was measured on: some may not be there, or no more."""
    there = {*map(part_of, data_sets(runner.rows()))} if sets else set()
    return [one for one in sets if one in there and one not in runner.missing]


def _part(name: str, plan: Any, data: str) -> Any:
    """Of a plan what is done on one data set."""
    if data not in (sets := _sets(plan)):
        there = f"one on each of {', '.join(sets)}" if sets else "no parts by data set"
        raise ValueError(f"{name} has no part on {data}; it has {there}")
    return replace(plan, networks={data: plan.networks[data]})


def _of_seed(name: str, plan: Any, seed: int) -> Any:
    """Of a plan what is done with one seed."""
    if seed not in (seeds := getattr(plan, "seeds", ())):
        there = f"seeds {', '.join(map(str, seeds))}" if seeds else "no seeds to choose from"
        raise ValueError(f"{name} has no seed {seed}; it has {there}")
    return replace(plan, seeds=(seed,))


def write_report(out: Path) -> Path:
    """Write report.md and figure.png of an experiment's folder from its rows.

    Raises:
        FileNotFoundError: the folder is not one of an experiment.
        ValueError: what it holds is damaged.
    """
    claim, rows = read_claim(out), read_rows(out)
    try:
        text = f"# {EXPERIMENTS[claim.experiment]}\n\n{section(claim, rows)}"
        if rows:
            _experiment(claim.experiment).plot(rows, out / FIGURE)
    except FileNotFoundError as error:
        raise ValueError(f"{error.filename} is gone; {_again(out, claim)}") from None
    except KeyError as error:
        raise ValueError(
            f"{out / ROWS} has a row without {error}, perhaps of an earlier version; {_again(out, claim)}"
        ) from None
    except (TypeError, AttributeError, IndexError, ValueError) as error:
        raise ValueError(
            f"{out / ROWS} has rows that cannot be used ({error}); {_again(out, claim)}"
        ) from None
    write_atomically(out / "report.md", text)
    return out / "report.md"


def _again(out: Path, claim: Claim) -> str:
    return f"remove {out / ROWS} and run {claim.experiment} again: networks are kept"


def section(claim: Claim, rows: list[Row]) -> str:
    """The figure, the tables of an experiment, and, folded, how they came about."""
    only = claim.parts and {*map(part_of, data_sets(rows))} <= {*claim.parts}
    part = "" if claim.finished else ON_SOME.format(" and ".join(claim.parts)) if only else IN_PART
    figure = f"![figure]({FIGURE})\n\n" if rows else ""
    origins = markdown.folded("Networks, command, seeds and hardware", markdown.origins(rows))
    return f"{figure}{part}{said_of(claim)}{_experiment(claim.experiment).report(rows)}\n{origins}"


def said_of(claim: Claim) -> str:
    """What a smaller form is, Markdown; experiments differ in what is smaller in their medium form."""
    if claim.form == "full":
        return ""
    said = QUICK_FORM if claim.form == "quick" else _experiment(claim.experiment).MEDIUM_FORM
    return f"{said}\n\n"


def write_page(folder: Path) -> Path:
    """Join the experiments in a folder into one page, `report.md`, in the order of EXPERIMENTS.

    Args:
        folder: holds one folder per experiment.

    Raises:
        FileNotFoundError: no experiment has been run there.
        ValueError: what one of them holds is damaged.
    """
    found = [rows.parent for rows in folder.glob(f"*/{ROWS}")]  # one without data has none
    if not found:
        raise FileNotFoundError(f"{folder} holds no experiment; run one: capsnet-train experiment table1")
    parts = ["# Experiments\n"]
    for out in sorted(found, key=_place_in_page):
        report = write_report(out).read_text()
        parts.append("#" + report.replace(f"]({FIGURE})", f"]({out.name}/{FIGURE})"))
    write_atomically(folder / "report.md", "\n".join(parts))
    return folder / "report.md"


def _place_in_page(out: Path) -> tuple[int, int, str]:
    """An experiment's smaller forms come after the others."""
    claim = read_claim(out)
    return [*EXPERIMENTS].index(claim.experiment), FORMS.index(claim.form), out.name


def _claim_before(out: Path) -> Claim | None:
    """What an earlier command has left; None: nothing."""
    return read_claim(out) if (out / "experiment.json").exists() else None


def _claim(out: Path, name: str, form: Form, on: str | None) -> Claim:
    """Make the folder this experiment's, or see that it is; for now only its other parts are finished."""
    claim = Claim(name, form)
    if (out / "experiment.json").exists():
        there = read_claim(out)
        if replace(there, finished=False, parts=()) != claim:
            raise ValueError(
                f"{out} holds the {there.form} form of {there.experiment}, this is the {form} form of "
                f"{name}; choose another --out"
            )
        if on is not None:
            claim = replace(claim, parts=tuple(one for one in there.parts if one != on))
    _write_claim(out, claim)
    return claim


def _give_up(out: Path) -> None:
    """Leave no folder behind that holds nothing."""
    (out / "experiment.json").unlink()
    if {path.name for path in out.iterdir()} == {LOCK}:
        (out / LOCK).unlink()
        out.rmdir()


def _write_claim(out: Path, claim: Claim) -> None:
    write_atomically(out / "experiment.json", json.dumps(asdict(claim)) + "\n")


def read_claim(out: Path) -> Claim:
    """Which experiment a folder is of.

    Raises:
        FileNotFoundError: of none.
        ValueError: the file that says so is damaged.
    """
    file = out / "experiment.json"
    if not file.exists():
        raise FileNotFoundError(f"{out} is not the folder of an experiment: it has no experiment.json")
    try:
        claim = Claim(**json.loads(file.read_bytes()))
        claim = replace(claim, parts=tuple(claim.parts))
        is_known = claim.experiment in EXPERIMENTS
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file} is damaged: {error}; {_EXPECTED}") from None
    if claim.form not in FORMS:
        raise ValueError(f"{file}: there is no form {claim.form!r}; {_EXPECTED}")
    if not is_known:
        raise ValueError(f"{file}: there is no experiment {claim.experiment!r}; {_EXPECTED}")
    return claim


_EXPECTED = 'expected, in a line, say {"experiment": "table1", "form": "quick"}'


def _refuse_several_processes() -> None:
    """Each process that torchrun starts would run the whole experiment."""
    count = os.environ.get("WORLD_SIZE", "1")
    if distributed.is_torchelastic_launched() and count != "1":
        raise ValueError(
            f"experiment trains in one process, torchrun started {count}: start it without torchrun "
            "(fit trains one network in several)"
        )


def _experiment(name: str) -> Any:
    """What `training/experiments/__init__.py` says an experiment has: plans, run, report, plot."""
    if name in SECTION_7:
        from training.experiments.sabour2017 import section7

        return section7.EXPERIMENTS[name]
    paper = "sabour2017" if name in SABOUR_2017 else "hinton2018"
    return import_module(f"training.experiments.{paper}.{name.replace('-', '_')}")
