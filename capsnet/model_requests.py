"""The requests about models: which there are, whether they are ready, and which one answers."""

from urllib.parse import quote

from capsnet.answers import Model, Pinned, read_json, to_model, to_models
from capsnet.errors import CapsnetError
from capsnet.exchange import Exchange, Params, Request, params
from capsnet.retries import is_temporary


def models() -> Exchange[tuple[Model, ...]]:
    """Every model, without manifests."""
    return read_json((yield Request("GET", "/models")), to_models)


def model(name: str) -> Exchange[Model]:
    """One model, with its manifests."""
    return read_json((yield Request("GET", f"/models/{_in_path(name)}")), to_model)


def ready() -> Exchange[bool]:
    """Whether the service is ready to answer requests; it is not while a proxy says that it is away."""
    try:
        yield Request("GET", "/readyz")
    except CapsnetError as error:
        if not is_temporary(error):
            raise
        return False
    return True


def default_model() -> Exchange[str]:
    """The name of the model that answers requests without a model.

    Raises:
        CapsnetError: there is none; the same error as the service's own.
    """
    known = yield from models()
    for one in known:
        if one.default or len(known) == 1:
            return one.name
    names = ", ".join(one.name for one in known) or "no models"
    detail = f"none is the default; there are {names}"
    raise CapsnetError(400, "/problems/model-required", "Name a model", detail)


def pin(name: str | None, version: int | None) -> Exchange[Pinned]:
    """Load the model and version with which such requests are answered now, or with a canary most of them.

    Raises:
        CapsnetError: there is none.
    """
    name = name or (yield from default_model())
    yield Request("GET", f"{graph_path(name, version)}/ready")  # loads it, if it loads with its first request
    known = yield from model(name)
    for one in known.versions:
        is_wanted = one.default if version is None else one.version == version
        if is_wanted and one.manifest is not None and one.digest is not None:
            return Pinned(name, one.version, one.manifest, one.digest)
    states = ", ".join(f"{one.version} is {one.state}" for one in known.versions)
    raise _unknown_model(f"{name} has just been unloaded: {states}")


def stream_query(
    model: str | None, version: int | None, digest: str | None, **given: str | float | None
) -> Exchange[tuple[Params, str | None]]:
    """Query parameters that name one version for a whole stream, and its bundle's digest, if known."""
    if model is None or version is None:
        pinned = yield from pin(model, version)
        model, version, digest = pinned.model, pinned.version, digest or pinned.digest
    return params(model=model, version=version, **given), digest


def graph_path(graph: str, version: int | None) -> str:
    """The path of an encoder or a decoder in the Open Inference Protocol."""
    path = f"/v2/models/{_in_path(graph)}"
    return path if version is None else f"{path}/versions/{version}"


def _in_path(name: str) -> str:
    """A model's name as a part of a path.

    Raises:
        CapsnetError: 404, as the service would say; with this name in it, the path would be another route's.
    """
    if name in {"", ".", ".."}:
        raise _unknown_model(f"no model {name!r} is served")
    return quote(name, safe="")


def _unknown_model(detail: str) -> CapsnetError:
    return CapsnetError(404, "/problems/unknown-model", "No such model or version is served", detail)
