"""A model whose loading takes as long as a test wants."""

import asyncio
import threading

import pytest

from service.models.version_loader import VersionLoader


def hold_loading(monkeypatch: pytest.MonkeyPatch, held: str) -> threading.Event:
    """From now on loading this model waits until the event is set."""
    load, may_go_on = VersionLoader.load, threading.Event()

    async def slow_load(self, model, *arguments, **options):
        if model == held:
            await asyncio.to_thread(may_go_on.wait, 60)
        return await load(self, model, *arguments, **options)

    monkeypatch.setattr(VersionLoader, "load", slow_load)
    return may_go_on
