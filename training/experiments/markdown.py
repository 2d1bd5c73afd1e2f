"""Markdown of an experiment's results."""

from collections.abc import Iterable, Sequence
from statistics import mean, stdev

from training.experiments.runner import Row


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, its first column to the left and all others to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)) + "\n"


def folded(title: str, text: str) -> str:
    """Text that a page shows once its title is clicked."""
    return f"<details markdown>\n<summary>{title}</summary>\n\n{text.strip()}\n\n</details>\n"


def mean_and_deviation(values: Sequence[float], digits: int = 2) -> str:
    """`0.25 ± 0.01 (3)`: mean, deviation of the sample and how many; blank without values."""
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f} ({len(values)})"


def difference(values: Sequence[float], paper: float | None, digits: int = 2) -> str:
    """The mean's difference to the paper's number, with its sign; blank without one."""
    return f"{mean(values) - paper:+.{digits}f}" if values and paper is not None else ""


def number(value: float | None, digits: int = 2) -> str:
    """Blank where there is none."""
    return "" if value is None else f"{value:.{digits}f}"


def counted(count: int, thing: str) -> str:
    """`1 network`, `2 networks`."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def largest(changes: Sequence[float]) -> tuple[int, float]:
    """The largest change, either way, and which one it is."""
    return max(enumerate(changes), key=lambda pair: abs(pair[1]))


def counts(values: Iterable[int]) -> str:
    """`1,000 or 24,300`: the different ones, rising."""
    return " or ".join(f"{value:,}" for value in sorted(set(values)))


def origins(rows: Sequence[Row]) -> str:
    """The rows' origins: networks, commands, seeds, hardware and hours."""
    networks = {row["network"]: row for row in rows if "network" in row}.values()
    hours = sum(row["hours"] for row in networks)
    facts = {
        "command": _list(f"`{row['command']}`" for row in rows),
        "seeds": _list(str(row["seed"]) for row in networks),
        "trained for": f"{_time(hours)}, {counted(len(networks), 'network')}",
        "hardware": _list(row["hardware"] for row in networks),
        "source commit": _list(row["source_commit"] for row in networks),
        "resumed": _list(note for row in networks for note in row.get("resumed", ())) or "never",
    }
    settings = dict.fromkeys(row["setting"] for row in networks if "setting" in row)
    lines = [*(f"- network: {setting}" for setting in settings)]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    return "\n".join(lines) + "\n"


def _time(hours: float) -> str:
    """In hours, or in minutes if it is short."""
    return f"{hours:.2f} hours" if hours >= 0.1 else f"{60 * hours:.1f} minutes"


def _list(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))
