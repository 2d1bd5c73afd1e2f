"""benchmarks.serving.request_cost with a tiny model."""

import asyncio

import pytest
import uvicorn

from benchmarks.serving.request_cost import Clients, picture, post
from export.contract.manifest import read_manifest
from service.app import create_app
from service.http.connections import BoundedHttp
from service.models.repository import Repository
from service.settings import Settings
from tests.support.tiny_bundle import write_bundle


def test_the_clients_wait_for_all_answers_without_polling(tmp_path, monkeypatch):
    bundle = write_bundle(tmp_path / "models" / "tiny" / "1")
    request = post("image/png", picture(read_manifest(bundle)))
    settings = Settings(models=str(tmp_path / "models"), device="cpu", api_keys=None, rescan_s=0)
    loaded: asyncio.Queue[Repository] = asyncio.Queue()
    app = create_app(settings, on_loaded=loaded.put_nowait)
    config = uvicorn.Config(app, http=BoundedHttp, ws="none", log_config=None, access_log=False)
    config.load()

    async def ask_twice() -> None:
        lifespan = config.lifespan_class(config)
        await lifespan.startup()
        await loaded.get()
        clients = Clients(config, lifespan.state)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", lambda _: pytest.fail("it polls"))
            await clients.ask(request)
            await clients.ask(request)
        await lifespan.shutdown()

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(ask_twice())  # each checks that its answers have come, with status 200
