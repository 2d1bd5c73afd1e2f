"""What capsnet-serve does about gRPC before it starts: the extra is there, and the port is free and kept."""

import socket
from importlib.util import find_spec

from service.settings import Settings, SettingsError

PACKAGES = ("grpc", "tritonclient")


def check_extra(settings: Settings) -> None:
    """The extra is installed, if gRPC is wanted; imports nothing of it.

    Raises:
        SettingsError: a package is missing.
    """
    for package in PACKAGES if settings.grpc_port is not None else ():
        if find_spec(package) is None:
            raise SettingsError(f"CAPSNET_GRPC_PORT needs {package}: pip install -e '.[grpc]'")


def keep_port(host: str, port: int) -> socket.socket:
    """A socket that keeps the port for the processes of this service, which each listen on it by themselves.

    Args:
        host: address to listen on.
        port: 0 takes a free one.

    Raises:
        OSError: another service listens there, or the address is none of this machine's. (gRPC itself would
            share the port with the other service, or write a page.)
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        port = probe.getsockname()[1]
    kept = socket.socket(family, socket.SOCK_STREAM)
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        kept.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        kept.bind((host, port))
    except OSError:
        kept.close()
        raise
    return kept
