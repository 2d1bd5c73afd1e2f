"""What throughput.py found of each contender, the ratios between them, and the tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from export.optimize.plan import Variant

PLAIN = "plain graph"
VARIANTS: Mapping[Variant, str] = {
    "plain": PLAIN,
    "toom_cook_1d": "ours, one axis",
    "toom_cook_2d": "ours, both axes",
    "em_moments": "ours, from moments",
}
SERVED = "ours, as served"
OURS = {*VARIANTS.values(), SERVED} - {PLAIN}
ALL_OF_A_NETWORK = (  # the variants of a CapsNet, and those of matrix capsules
    {PLAIN, VARIANTS["toom_cook_1d"], VARIANTS["toom_cook_2d"]},
    {PLAIN, VARIANTS["em_moments"]},
)


@dataclass
class Row:
    """What was found of one contender.

    Attributes:
        seconds: median time of a batch by its size, one for each round.
        peak_bytes: highest resident memory up to this size of batch.
        difference: the largest from the plain graph's, by output.
        left_out: why it was not measured to the end; then the rest says nothing.
    """

    name: str
    seconds: dict[int, list[float]]
    peak_bytes: dict[int, int] = field(default_factory=dict)
    difference: dict[str, float] = field(default_factory=dict)
    left_out: str | None = None

    def images_per_second(self, size: int) -> float:
        """Over all rounds."""
        return size / median(self.seconds[size])


class Ratios(NamedTuple):
    """One of ours against others at one size of batch.

    Attributes:
        to_plain: how many times as fast as the plain graph.
        to_best_other: the same of the fastest that is not ours, in each round anew.
        best_other: the fastest of them over all rounds.
        memory_to_plain: highest memory, up to this size.
    """

    to_plain: float
    to_best_other: float
    best_other: str
    memory_to_plain: float


@dataclass(frozen=True)
class Report:
    """The tables of one run.

    Attributes:
        rows: of the contenders that were measured to the end.
        choice: the variant that export/optimize chooses, by size of batch.
    """

    rows: Sequence[Row]
    choice: Mapping[int, Variant]

    @property
    def ratios(self) -> dict[str, dict[int, Ratios]]:
        """Of the chosen graphs ("ours") and of the service's session ("as served"), by size of batch."""
        found: dict[str, dict[int, Ratios]] = {"ours": {}, "as served": {}}
        others = [row for row in self.rows if row.name not in OURS]
        plain = self._row(PLAIN)
        for size in self.choice if plain else ():
            best = max(others, key=lambda row: row.images_per_second(size))
            for name, ours in (("ours", self._chosen(size)), ("as served", self._row(SERVED))):
                if ours and plain:
                    found[name][size] = Ratios(
                        to_plain=speed_ratio(ours, [plain], size),
                        to_best_other=speed_ratio(ours, others, size),
                        best_other=best.name,
                        memory_to_plain=ours.peak_bytes[size] / plain.peak_bytes[size],
                    )
        return found

    @property
    def of_best_variant(self) -> dict[int, float]:
        """The service's session against the fastest variant of each round, by size; at best about 1."""
        served, variants = self._row(SERVED), [row for row in self.rows if row.name in VARIANTS.values()]
        if not served or {row.name for row in variants} not in ALL_OF_A_NETWORK:
            return {}
        return {size: speed_ratio(served, variants, size) for size in self.choice}

    def lines(self) -> Iterator[str]:
        """Both tables; what is chosen at a size stands in bold."""
        sizes, ratios = list(self.choice), self.ratios
        yield from _head("images/s at batch", sizes, "differs by")
        for row in self.rows:
            cells = (self._cell(row, size, f"{row.images_per_second(size):.0f}") for size in sizes)
            yield _line(row.name, *cells, f"{max(row.difference.values()):.0e}")
        for name, found in ratios.items():
            if found:
                yield _line(f"{name} / plain graph", *(f"{one.to_plain:.2f}" for one in found.values()), "")
                yield _line(
                    f"{name} / best other", *(f"{one.to_best_other:.2f}" for one in found.values()), ""
                )
        bests = next((list(found.values()) for found in ratios.values() if found), [])
        if self.of_best_variant:
            yield _line(
                "as served / best variant", *(f"{ratio:.2f}" for ratio in self.of_best_variant.values()), ""
            )
        if bests:
            yield _line("best other", *(one.best_other for one in bests), "")
        yield ""
        yield from _head("MiB at most, up to batch", sizes)
        for row in self.rows:
            cells = (self._cell(row, size, f"{row.peak_bytes[size] / 2**20:.0f}") for size in sizes)
            yield _line(row.name, *cells)
        for name, found in ratios.items():
            if found:
                memory = (f"{one.memory_to_plain:.2f}" for one in found.values())
                yield _line(f"{name} / plain graph", *memory)

    def chosen_names(self) -> dict[int, str]:
        """The chosen graphs' names, where they were measured, by size of batch."""
        rows = {size: self._chosen(size) for size in self.choice}
        return {size: row.name for size, row in rows.items() if row}

    def _chosen(self, size: int) -> Row | None:
        """None where it, or what it was chosen from, was not measured."""
        has_ours = any(row.name in OURS - {SERVED} for row in self.rows)
        return self._row(VARIANTS[self.choice[size]]) if has_ours else None

    def _row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    def _cell(self, row: Row, size: int, text: str) -> str:
        return f"**{text}**" if row is self._chosen(size) else text


def speed_ratio(ours: Row, others: Sequence[Row], size: int) -> float:
    """How many times as fast as the fastest of the others in the same round; of the rounds, the median."""
    rounds = zip(ours.seconds[size], *(row.seconds[size] for row in others), strict=True)
    return median(min(theirs) / mine for mine, *theirs in rounds)


def _head(title: str, sizes: Sequence[int], *more: str) -> Iterator[str]:
    yield _line(title, *map(str, sizes), *more)
    yield "|" + " --- |" + " ---: |" * (len(sizes) + len(more))


def _line(name: str, *cells: str) -> str:
    return f"| {name:24} | " + " | ".join(f"{cell:>13}" for cell in cells) + " |"
