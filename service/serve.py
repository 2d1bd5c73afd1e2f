"""capsnet-serve: read options and settings, listen on a port, serve until a signal comes."""

import argparse
import math
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from service.stopping import hold_hangups, leave, leave_at_signals

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from service.http.keys import Keys
    from service.oip.grpc_server import GrpcPort
    from service.settings import Settings
    from service.workers.place import Place

EXAMPLES = """\
examples:
  capsnet-serve                               serve the bundles in models/ on port 8000
  capsnet-serve --models models:/srv/models   two folders of bundles, merged
  capsnet-serve --host 0.0.0.0 --port 80      for every host that can reach this machine
  capsnet-serve --workers auto                several processes, one for three cores (from six cores on)
  CAPSNET_DEVICE=cuda capsnet-serve           on the GPU; fails if there is none

Then open http://127.0.0.1:8000/docs, or
  curl -F images=@digit.png http://127.0.0.1:8000/classify

Every setting is an environment variable CAPSNET_<NAME>; options take precedence (docs/serving/settings.md):
  HOST PORT GRPC_PORT METRICS_PORT MODELS DEFAULT_MODEL VERSIONS_KEPT CACHE DEVICE PRECISION OPTIMIZE
  MAX_BATCH QUEUE_IMAGES DEADLINE_MS MAX_BODY_BYTES UPLOADS_BYTES RECEIVE_MS MAX_PIXELS
  MAX_REQUEST_PIXELS MAX_IMAGES_PER_REQUEST MAX_RECONSTRUCTIONS THREADS DECODE_THREADS
  WORKERS RESCAN_S API_KEYS API_KEYS_FILE ADMIN_KEY ADMIN_KEY_FILE KEY_RATE KEY_CONCURRENCY
  TRUSTED_PROXIES CORS_ORIGINS TRACING LOG_FORMAT LOG_LEVEL

exit status: 0 stopped by a signal, 1 cannot serve or inference has stopped, 2 wrong option or setting
"""


def run(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal comes; returns the exit status."""
    options = _parser().parse_args(arguments)

    # Imported late, so that a signal during the imports ends the process quietly.
    from service.http.keys import Keys
    from service.observability.logs import logging_to_stderr
    from service.oip.grpc_start import check_extra
    from service.settings import SettingsError, check_key_variable, read_settings

    try:
        settings = read_settings(**vars(options))
        check_key_variable(settings)
        check_extra(settings)
        keys = Keys(settings)
    except SettingsError as error:
        return _fail(str(error), 2)
    if keys.come_from_files:
        hold_hangups()
    try:
        settings, kept = _keep_grpc_port(settings)
        listeners = [_listen(settings.host, settings.port)]
        if settings.metrics_port is not None:
            listeners.append(_listen(settings.host, settings.metrics_port))
            settings = settings.model_copy(update={"metrics_port": listeners[1].getsockname()[1]})
    except OSError as error:
        return _fail(str(error), 1)
    with ExitStack() as opened, logging_to_stderr(settings.log_format, settings.log_level):
        for one in (*listeners, *filter(None, [kept])):
            opened.enter_context(one)
        if settings.worker_count > 1:
            return _supervise(settings, listeners, keys)
        leave_at_signals(is_logging=True)
        return _serve(settings, listeners, keys)


def _supervise(settings: "Settings", listeners: list[socket.socket], keys: "Keys") -> int:
    from service.workers.supervisor import Supervisor

    supervisor = Supervisor(
        settings,
        listeners,
        keys,
        serve_models=serve_models,
        serve_requests=serve_requests,
        say=lambda loaded: _announce(loaded, listeners, settings),
    )
    try:
        return supervisor.run()
    except OSError as error:
        return _fail(str(error), 1)


def serve_models(settings: "Settings", place: "Place", supervisor: "Connection") -> None:
    """Run models for workers until a signal comes: an engine process.

    Args:
        settings: of the service.
        place: where the processes meet.
        supervisor: is sent what is loaded, once it is.
    """
    from service.observability.logs import logging_to_stderr
    from service.workers.engine_process import run_engine
    from service.workers.supervisor import begin_child

    begin_child()
    for listener in place.listeners:
        listener.close()
    with logging_to_stderr(settings.log_format, settings.log_level):
        leave_at_signals(is_logging=True)
        failure = run_engine(settings, place, supervisor.send)
        if failure:
            _fail(failure, 1)
    sys.exit(1)


def serve_requests(settings: "Settings", place: "Place", supervisor: "Connection", keys: "Keys") -> None:
    """Serve HTTP with the models of an engine process until a signal comes: a worker.

    Args:
        settings: those of one worker.
        place: where the processes meet.
        supervisor: is sent a line once connections are accepted.
        keys: those that open the service.
    """
    from service.observability.logs import logging_to_stderr
    from service.observability.request_metrics import count_as_worker
    from service.workers.supervisor import begin_child

    begin_child()
    count_as_worker(place.worker)
    place.engine_listener.close()
    with logging_to_stderr(settings.log_format, settings.log_level):
        leave_at_signals(is_logging=True)
        status = _serve(settings, place.listeners, keys, place, lambda: supervisor.send("ready"))
    sys.exit(status)


def _serve(
    settings: "Settings",
    listeners: list[socket.socket],
    keys: "Keys",
    place: "Place | None" = None,
    on_started: Callable[[], None] | None = None,
) -> int:
    # Imported late, so that --help and a wrong setting answer at once.
    import asyncio
    import gc

    import uvicorn

    from service.app import create_app
    from service.http.connections import BoundedHttp
    from service.http.graceful_server import GracefulServer
    from service.http.key_use import KeyUse
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
        gc.collect()
        gc.freeze()  # what startup has made stays; to look through it again would stop requests for 70 ms
        _announce(repository.summary(), listeners, settings)

    grpc_port = _grpc_port(settings)
    beside = grpc_port.open if grpc_port else None
    app = create_app(
        settings,
        on_loaded=announce,
        on_stopped=end,
        engine=place.address if place else None,
        beside=beside,
        keys=keys,
        key_use=KeyUse(place.key_use, place.worker) if place else None,
    )
    config = uvicorn.Config(
        app,
        http=BoundedHttp,
        ws="none",
        log_config=None,  # its records are logged as all others
        log_level="warning",
        access_log=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies,
        timeout_graceful_shutdown=math.ceil(settings.deadline_ms / 1000),  # then slow senders are cut off
    )
    server = GracefulServer(config, on_started, drain=grpc_port.drain if grpc_port else None)

    async def serve() -> None:
        await server.serve(sockets=listeners)
        if server.is_told_to_stop:
            leave()  # does not wait for a model that is being loaded

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(serve())
    return _fail(failures[0], 1) if failures else 0


def _parser() -> argparse.ArgumentParser:
    from export.contract.package_version import package_version

    parser = argparse.ArgumentParser(
        prog="capsnet-serve",
        description="Serve capsule network bundles over HTTP.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {package_version()}")
    parser.add_argument("--host", help="address to listen on (CAPSNET_HOST, 127.0.0.1)")
    parser.add_argument("--port", help="port; 0 takes a free one (CAPSNET_PORT, 8000)")
    parser.add_argument("--grpc-port", help="port for gRPC (CAPSNET_GRPC_PORT, none); needs the extra grpc")
    parser.add_argument("--models", help="folders of <model>/<version>/, like PATH (CAPSNET_MODELS, models)")
    parser.add_argument("--device", help="auto, cpu, cuda or tensorrt (CAPSNET_DEVICE, auto)")
    parser.add_argument("--workers", help="processes on one port, or auto (CAPSNET_WORKERS, 1)")
    return parser


def _keep_grpc_port(settings: "Settings") -> "tuple[Settings, socket.socket | None]":
    """The settings with the port that gRPC gets, and the socket that keeps it; as they are without gRPC.

    Raises:
        OSError: the port is not available; the message says which, and why.
    """
    from service.oip.grpc_start import keep_port

    if settings.grpc_port is None:
        return settings, None
    try:
        kept = keep_port(settings.host, settings.grpc_port)
    except OSError as error:
        raise _cannot_listen(settings.host, settings.grpc_port, error) from None
    return settings.model_copy(update={"grpc_port": kept.getsockname()[1]}), kept


def _grpc_port(settings: "Settings") -> "GrpcPort | None":
    if settings.grpc_port is None:
        return None
    from service.oip.grpc_server import GrpcPort

    return GrpcPort(settings)


def _cannot_listen(host: str, port: int, error: OSError) -> OSError:
    return OSError(f"cannot listen on {host}:{port}: {error.strerror or error}")


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; opened here so that a port in use is one line and not a traceback.

    Raises:
        OSError: the address is not available; the message says which, and why.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from None
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _announce(loaded: str, listeners: list[socket.socket], settings: "Settings") -> None:
    url, *others = map(_url, listeners)
    also = "".join(f", metrics at {other}/metrics" for other in others)
    also += f", gRPC at {settings.grpc_address}" if settings.grpc_port is not None else ""
    with suppress(OSError):  # whoever reads this may be gone; the service serves all the same
        print(f"Serving {loaded} at {url} (documentation: {url}/docs){also}", flush=True)


def _fail(message: str, status: int) -> int:
    print(f"capsnet-serve: {message}", file=sys.stderr)
    return status
