"""Triton's statistics extension: what each graph of the loaded versions has done."""

from typing import Any

from service.errors import UnknownModelError, shown
from service.models.interface import LoadedGraph, Models
from service.oip.models import SUFFIXES, bundle_and_role, no_such_graph


async def statistics(models: Models, name: str = "", version: str = "") -> dict[str, Any]:
    """The extension's answer for a model, or for all; loads nothing, so a model that is not loaded has none.

    Args:
        models: what is loaded.
        name: as in a path of the protocol; "" for every graph.
        version: "" for all that are loaded; as in Triton, it counts only beside a name.

    Raises:
        UnknownModelError: no such model or version, or it has no such graph.
        NotReadyError: the first scan has not finished.
    """
    graphs = await models.graphs()
    if name:
        bundle, role = await bundle_and_role(name, models)
        await models.describe(bundle, manifests=False)  # raises if there is no such model
        of_model = [one for one in graphs if one.model == bundle]
        graphs = [one for one in of_model if one.role == role]
        if of_model and not graphs:
            raise no_such_graph(name, of_model[0].model, of_model[0].version, role)
    chosen = [one for one in graphs if not (name and version) or str(one.version) == version]
    if name and version and not chosen:
        listed = ", ".join(str(one.version) for one in graphs) or "none"
        raise UnknownModelError(f"{name} has no loaded version {shown(version)}; available: {listed}")
    return {"model_stats": [_describe(one) for one in chosen]}


def _describe(graph: LoadedGraph) -> dict[str, Any]:
    name = graph.model + SUFFIXES.get(graph.role, "")
    return {"name": name, "version": str(graph.version), **graph.statistics}
