"""Which graph runs a batch of the encoder, and with how many threads: the sessions, by cores and batch size.

On a CPU a bundle's encoder may have faster variants. Which of them is fastest depends on the size of the
batch and on whether it has all cores to itself. `graph_cache` has them derived and measured.
"""

import functools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from export.contract.architecture import StatedArchitecture, stated_architecture
from export.contract.manifest import Manifest
from export.optimize.plan import PLAIN, Choice, Plan, Variant, read_plan
from service.inference.graph_cache import cached_graphs, measure_again
from service.inference.mapped_weights import map_weights
from service.inference.providers import EngineOptions
from service.inference.sessions import Session, open_derived, open_session


@dataclass(frozen=True)
class BySize:
    """Sessions for the sizes of batches.

    Attributes:
        sessions: from the one for small batches to the one for large ones.
        borders: images in a batch, at most, for each of them but the last; ascending.
    """

    sessions: Sequence[Session]
    borders: Sequence[int] = ()

    def session(self, images: int) -> Session:
        """The one for so many images."""
        return self.sessions[bisect_left(self.borders, images)]


@dataclass(frozen=True)
class SessionPool:
    """The sessions of one encoder.

    Attributes:
        exclusive: for a batch that has all cores to itself.
        shared: for a batch that shares the cores with others.
        plan: the graphs that they run.
        folder: where the plan is kept, if anywhere.
        architecture: from which the graphs of the plan were derived, if there are any.
    """

    exclusive: BySize
    shared: BySize
    plan: Plan = PLAIN
    folder: Path | None = None
    architecture: StatedArchitecture | None = None

    def session(self, images: int, *, exclusive: bool) -> Session:
        """The session for a batch of so many images.

        Args:
            images: in the batch.
            exclusive: whether it has all cores.
        """
        return (self.exclusive if exclusive else self.shared).session(images)

    @property
    def all(self) -> list[Session]:
        """Each session once."""
        sessions = [*self.exclusive.sessions, *self.shared.sessions]
        return list({id(session): session for session in sessions}.values())

    @property
    def large_batch_above(self) -> int | None:
        """Above so many images in a batch each image costs less; None if the size matters little.

        They do from the first range of `toom_cook_2d` on, whichever graph may be the fastest above it.
        """
        variants, borders = self.plan.shared.variants, self.plan.shared.borders
        if "toom_cook_2d" not in variants:
            return None
        return (0, *borders)[variants.index("toom_cook_2d")]

    def describe(self) -> str:
        """Which graph runs when: "plain", or "toom_cook_1d to 4 images, then toom_cook_2d"."""
        exclusive, shared = self.plan.exclusive, self.plan.shared
        words = str(exclusive) if exclusive == shared else f"{exclusive}; beside other batches {shared}"
        return f"{words}; measured under load" if self.plan.is_under_load else words

    @property
    def needs_measuring(self) -> bool:
        """The graphs were chosen while something else took the cores, and a better choice could be kept."""
        return self.plan.is_under_load and self.folder is not None and self.folder.is_dir()

    async def measure_again(self, encoder: bytes, decoder: bytes) -> None:
        """Measure the graphs once more, in a process of its own; a better plan replaces that in the cache.

        Args:
            encoder: the bundle's graph.
            decoder: the bundle's; empty for none.

        Raises:
            OSError: no process can be started, or it failed.
            TimeoutError: it took longer than `graph_cache.DERIVE_S`.
        """
        if self.folder and self.architecture:
            await measure_again(self.folder, self.plan.threads, self.architecture, encoder, decoder)

    def read_better_plan(self) -> Plan | None:
        """The plan in the cache, if it was measured under less load than the one in use. Blocks."""
        plan = read_plan(self.folder) if self.folder else None
        return plan if plan and plan.waited < self.plan.waited else None


def pool_of_one(session: Session) -> SessionPool:
    """The same session for every batch."""
    same = BySize([session])
    return SessionPool(same, same)


def open_on_cpu(
    content: bytes, decoder: bytes, manifest: Manifest, options: EngineOptions, threads: tuple[int, int]
) -> SessionPool:
    """Sessions of the graphs that are fastest on this CPU.

    Args:
        content: the bundle's encoder.
        decoder: the bundle's decoder; empty for none.
        manifest: of the bundle.
        options: whether there are to be faster graphs, and where they are kept.
        threads: of a batch that has all cores, and of one that shares them.

    Raises:
        BundleError: a graph cannot be loaded, or its inputs and outputs are not the manifest's.
    """
    graph, architecture = manifest.graphs["encoder"], stated_architecture(manifest)
    cache = options.cache if options.optimize else None
    exclusive_threads, shared_threads = threads
    mapped = functools.cache(map_weights)
    with cached_graphs(content, graph, architecture, cache, threads, decoder) as (plan, folder):

        def opened(variant: Variant, threads: int) -> Session:
            if variant == "plain":
                return open_session(content, graph, "cpu", options, threads)
            return open_derived(folder / f"{variant}.onnx", graph, threads, mapped)

        shared = open_by_size(plan.shared, partial(opened, threads=shared_threads))
        if shared_threads == exclusive_threads:
            return SessionPool(shared, shared, plan, folder, architecture)
        exclusive = open_by_size(plan.exclusive, partial(opened, threads=exclusive_threads))
    return SessionPool(exclusive, shared, plan, folder, architecture)


def open_by_size(choice: Choice, opened: Callable[[Variant], Session]) -> BySize:
    """The sessions of a choice, each opened once."""
    sessions = {variant: opened(variant) for variant in dict.fromkeys(choice.variants)}
    return BySize([sessions[variant] for variant in choice.variants], choice.borders)
