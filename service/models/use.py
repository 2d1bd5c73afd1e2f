"""A request's use of a model, wherever the models are."""

import asyncio
from typing import Generic, Protocol, TypeVar

from service.errors import Unfinished
from service.models.interface import ServedModel
from service.observability.timings import end_part

Served = TypeVar("Served", bound=ServedModel)
STILL_LOADING = Unfinished("the model is not loaded yet, which goes on; try again")


class Lender(Protocol[Served]):
    """Keeps a model loaded while a request needs it."""

    def begin_use(self, model: str | None, version: int | None) -> Served | None:
        """The model of a request, kept loaded until `end_use`; None if it may have to be loaded first."""

    async def load_to_use(self, model: str | None, version: int | None) -> Served:
        """The same, loaded first if it has to be."""

    def end_use(self, found: Served, /) -> None:
        """A request needs the model no more."""


class Use(Generic[Served]):
    """What `Models.use` gives; not a generator, which takes longer than finding the model."""

    def __init__(self, lender: Lender[Served], model: str | None, version: int | None) -> None:
        self._lender = lender
        self._wanted = model, version

    async def __aenter__(self) -> Served:
        self._found = self._lender.begin_use(*self._wanted) or await self._load()
        return self._found

    async def _load(self) -> Served:
        try:
            return await self._lender.load_to_use(*self._wanted)
        except asyncio.CancelledError:
            raise asyncio.CancelledError(STILL_LOADING) from None
        finally:
            end_part("load")

    async def __aexit__(self, *_: object) -> None:
        self._lender.end_use(self._found)
