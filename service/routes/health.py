"""/healthz and /readyz: for orchestrators and load balancers."""

from fastapi import APIRouter, Request, Response

from service.http.answers import json_response
from service.http.openapi import UNREADY
from service.routes.schemas import Health, Readiness
from service.state import service_of

routes = APIRouter(tags=["Operations"])


@routes.get("/healthz", summary="Is the process alive?", responses={200: {"model": Health}, **UNREADY})
async def get_health(request: Request) -> Response:
    """503 once an inference thread has died and only a new process helps; /readyz says more."""
    await service_of(request).models.check_alive()
    return json_response({"status": "ok"})


@routes.get("/readyz", summary="Will requests be answered?", responses={200: {"model": Readiness}, **UNREADY})
async def get_readiness(request: Request) -> Response:
    """503 with the reason until requests can be answered, and while an inference thread is stuck.

    Where there is no default model, it is 200 before any model is loaded.
    """
    loaded = await service_of(request).models.ready()
    devices = ", ".join(sorted({model.device for model in loaded}))
    names = sorted(model.full_name for model in loaded)
    answer = {"status": "ready", "device": devices, "models": names}
    if warnings := [f"{model.full_name}: {warning}" for model in loaded for warning in model.warnings]:
        answer["warnings"] = warnings
    return json_response(answer)
