"""What the lifespan makes and every route is handed."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from service.repository import Repository
from service.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Service:
    """The parts of a running service.

    Attributes:
        pool: threads for pictures, which take milliseconds that the event loop does not have.
    """

    settings: Settings
    repository: Repository
    pool: ThreadPoolExecutor

    async def in_pool(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a blocking function on a thread of the pool."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, lambda: function(*args, **kwargs))
