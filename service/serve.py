"""capsnet-serve: read options and settings, listen on a port, serve until a signal comes."""

import argparse
import math
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from service.stopping import leave, leave_at_signals

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from service.settings import Settings

EXAMPLES = """\
examples:
  capsnet-serve                               serve the bundles in models/ on port 8000
  capsnet-serve --models models:/srv/models   two folders of bundles, merged
  capsnet-serve --host 0.0.0.0 --port 80      for every host that can reach this machine
  CAPSNET_DEVICE=cuda capsnet-serve           on the GPU; fails if there is none

Then open http://127.0.0.1:8000/docs, or
  curl -F images=@digit.png http://127.0.0.1:8000/classify

Every setting is an environment variable CAPSNET_<NAME>; options take precedence (docs/serving/settings.md):
  HOST PORT MODELS DEFAULT_MODEL VERSIONS_KEPT CACHE DEVICE PRECISION OPTIMIZE MAX_BATCH
  QUEUE_IMAGES DEADLINE_MS MAX_BODY_BYTES UPLOADS_BYTES RECEIVE_MS MAX_PIXELS
  MAX_REQUEST_PIXELS MAX_IMAGES_PER_REQUEST MAX_RECONSTRUCTIONS THREADS DECODE_THREADS
  WORKERS RESCAN_S API_KEYS ADMIN_KEY CORS_ORIGINS LOG_FORMAT LOG_LEVEL

exit status: 0 stopped by a signal, 1 cannot serve or inference has stopped, 2 wrong option or setting
"""


def run(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal comes; returns the exit status."""
    options = _parser().parse_args(arguments)

    # Imported late, so that a signal during the imports ends the process quietly.
    from service.observability.logs import logging_to_stderr
    from service.settings import SettingsError, check_key_variable, read_settings

    try:
        settings = read_settings(**vars(options))
        check_key_variable(settings)
    except SettingsError as error:
        return _fail(str(error), 2)
    try:
        listener = _listen(settings)
    except OSError as error:
        return _fail(f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}", 1)
    with listener, logging_to_stderr(settings.log_format, settings.log_level):
        if settings.workers > 1:  # imported late, so that --help answers at once
            from service.supervisor import Supervisor

            return Supervisor(settings, listener, serve_as_worker, _print).run()
        leave_at_signals(is_logging=True)
        return _serve(settings, listener, _print)


def serve_as_worker(settings: "Settings", listener: socket.socket, channel: "Connection") -> None:
    """Serve on a socket that other processes accept from, too, until a signal comes.

    Args:
        settings: those of one worker.
        listener: of all workers.
        channel: takes the line that says what is served, once connections are accepted.
    """
    from service.observability.logs import logging_to_stderr
    from service.supervisor import end_with_supervisor

    with listener, logging_to_stderr(settings.log_format, settings.log_level):
        leave_at_signals(is_logging=True)
        end_with_supervisor()
        status = _serve(settings, listener, channel.send)
    sys.exit(status)


def _serve(settings: "Settings", listener: socket.socket, say: Callable[[str], None]) -> int:
    # Imported late, so that --help and a wrong setting answer at once.
    import asyncio
    import gc

    import uvicorn

    from service.app import create_app
    from service.http.connections import BoundedHttp
    from service.http.graceful_server import GracefulServer
    from service.inference.memory import use_one_heap
    from service.models.repository import Repository

    use_one_heap()
    failures: list[str] = []

    def end(reason: str) -> None:
        failures.append(reason)
        server.should_exit = True

    def announce(repository: Repository) -> None:
        if repository.failure:
            end(str(repository.failure))
            return
        loaded = [f"{one.full_name} on {one.engine.device}" for one in repository.loaded()]
        gc.collect()
        gc.freeze()  # what startup has made stays; to look through it again would stop requests for 70 ms
        served = ", ".join(loaded) or "every model from the first request for it"
        say(f"Serving {served} at {_url(listener)} (documentation: {_url(listener)}/docs)")

    app = create_app(settings, on_loaded=announce, on_stopped=end)
    config = uvicorn.Config(
        app,
        http=BoundedHttp,
        ws="none",
        log_config=None,  # its records are logged as all others
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=math.ceil(settings.deadline_ms / 1000),  # then slow senders are cut off
    )
    server = GracefulServer(config)

    async def serve() -> None:
        await server.serve(sockets=[listener])
        if server.is_told_to_stop:
            leave()  # does not wait for a model that is being loaded

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(serve())
    return _fail(failures[0], 1) if failures else 0


def _parser() -> argparse.ArgumentParser:
    from importlib.metadata import version as installed_version

    parser = argparse.ArgumentParser(
        prog="capsnet-serve",
        description="Serve capsule network bundles over HTTP.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {installed_version('capsnet')}")
    parser.add_argument("--host", help="address to listen on (CAPSNET_HOST, 127.0.0.1)")
    parser.add_argument("--port", help="port; 0 takes a free one (CAPSNET_PORT, 8000)")
    parser.add_argument("--models", help="folders of <model>/<version>/, like PATH (CAPSNET_MODELS, models)")
    parser.add_argument("--device", help="auto, cpu, cuda or tensorrt (CAPSNET_DEVICE, auto)")
    parser.add_argument("--workers", help="processes on one port, on CPUs (CAPSNET_WORKERS, 1)")
    return parser


def _listen(settings: "Settings") -> socket.socket:
    """A listening socket; opened here so that a port in use is one line and not a traceback."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _print(line: str) -> None:
    print(line, flush=True)


def _fail(message: str, status: int) -> int:
    print(f"capsnet-serve: {message}", file=sys.stderr)
    return status
