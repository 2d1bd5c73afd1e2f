"""A port of its own for /metrics and the probes, so that a firewall can keep it from clients."""

from starlette.types import ASGIApp, Receive, Scope, Send

from service import errors
from service.http.request_log import PROBES

METRICS = "/metrics"


class MetricsPort:
    """ASGI middleware that answers the probes alone on one port, and on the others all but the metrics.

    Args:
        app: the application inside, which serves both ports.
        port: for the metrics.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what belongs to the port that it came to; all else is 404."""
        if scope["type"] == "http" and (elsewhere := self._elsewhere(scope["path"], scope["server"][1])):
            detail = f"there is nothing at {errors.shown(scope['path'])} on this port; {elsewhere}"
            await errors.framework_problem(404, detail)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _elsewhere(self, path: str, port: int) -> str:
        """Where a path is answered that this port does not answer; "" if it does."""
        if port == self._port:
            return "" if path in PROBES else f"it has {', '.join(sorted(PROBES))}"
        return f"port {self._port} has it" if path == METRICS else ""
