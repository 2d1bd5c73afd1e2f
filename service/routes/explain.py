"""/explain: how routing came to its answer for an image, iteration by iteration."""

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray

from export.contract.receptive_fields import Grid
from service.errors import TooManyPicturesError
from service.http.accept import VARY, prefers_png
from service.http.answers import json_response
from service.http.direct_route import DirectRoute
from service.http.heat_png import heat_strip
from service.http.openapi import JSON_OR_PNG, PROBLEMS
from service.http.png import to_base64_pngs
from service.http.request_log import log_fields
from service.inference.explanation import Explanation, explanation
from service.models.interface import ServedModel
from service.routes.explain_schemas import ExplainAnswer
from service.routes.images import (
    IMAGES_BODY,
    ImageFiles,
    Images,
    decode_images,
    parse_images,
    read_images_body,
)
from service.routes.schemas import ExplainQuery
from service.state import Service, service_of

# T iterations, J classes, R x R places, H rows, W columns, C channels

routes = APIRouter(tags=["Pictures"], route_class=DirectRoute)


@routes.post(
    "/explain",
    summary="How routing came to its answer",
    response_class=Response,
    responses={200: {"model": ExplainAnswer, "content": JSON_OR_PNG}, **PROBLEMS},
    openapi_extra=IMAGES_BODY,
)
async def post_explain(request: Request, query: Annotated[ExplainQuery, Query()]) -> Response:
    """One image as /classify takes it, or one pair of views.

    For `Accept: image/png` the heat maps over the image: a row for each class, the most probable first, and a
    column for each iteration. Orange is for the class, blue against it.

    Bundles without an explain graph answer 409.
    """
    service = service_of(request)
    body = await read_images_body(request)
    async with service.while_wanted(request):
        given = await parse_images(body, service)
        async with service.models.use(query.model, query.version) as model:
            model.require_explain_graph()
            chosen = None if query.label is None else model.class_index(query.label)
            images = await decode_one(given, model, query, service)
            log_fields(request, model=model.full_name, images=1)
            outputs = await model.explain(images.pixels)
            alone = {name: values[0] for name, values in outputs.items()}
            made = await service.pool.run(explanation, alone, model.manifest)
            order = shown_classes(made, chosen)
            if prefers_png(request):
                return Response(
                    await service.pool.run(png_answer, images.pixels[0], made, order, service),
                    media_type="image/png",
                    headers=VARY,
                )
            return json_response(await service.pool.run(json_answer, model, images, made, order), VARY)


async def decode_one(given: ImageFiles, model: ServedModel, query: ExplainQuery, service: Service) -> Images:
    """The image of a body.

    Raises:
        TooManyPicturesError: there are several.
        ServiceError: a file or the array is invalid, or the service is overloaded.
    """
    manifest = model.manifest
    if not given.is_array and len(given.files) > manifest.views:
        raise _several(f"{len(given.files)} files")
    images = await decode_images(given, manifest, query.preprocess, service)
    if len(images.pixels) > 1:
        raise _several(f"{len(images.pixels)} images")
    return images


def shown_classes(made: Explanation, chosen: int | None) -> list[int]:
    """The chosen class, or all by falling probability in the last iteration."""
    if chosen is not None:
        return [chosen]
    return [int(j) for j in np.argsort(-made.probabilities[-1], kind="stable")]


def png_answer(pixels: NDArray[np.float32], made: Explanation, order: list[int], service: Service) -> bytes:
    """The heat maps of classes over an image [H, W, C]; blocks while it writes the PNG file.

    Raises:
        TooManyPicturesError: there are more than CAPSNET_MAX_RECONSTRUCTIONS.
    """
    heat = made.heat[:, order].swapaxes(0, 1)  # [J, T, R, R]
    count, limit = heat.shape[0] * heat.shape[1], service.settings.max_reconstructions
    if count > limit:
        raise TooManyPicturesError(
            f"{heat.shape[0]} classes x {heat.shape[1]} iterations are {count} maps; at most {limit} "
            "(CAPSNET_MAX_RECONSTRUCTIONS): name a class as label"
        )
    return heat_strip(pixels, heat, made.grid)


def json_answer(model: ServedModel, images: Images, made: Explanation, order: list[int]) -> dict[str, Any]:
    """The JSON answer; blocks while it writes the PNG file of the image."""
    names = model.manifest.class_names
    [shown] = to_base64_pngs(images.pixels)
    answer = {
        **model.heading(),
        "filename": images.filenames[0],
        "routing": made.routing,
        "iterations": len(made.entropy),
        "label": names[int(made.probabilities[-1].argmax())],
        "model_input": shown,
        "grid": _grid(made.grid),
        "entropy": made.entropy,
        "classes": [{"label": names[j], **_of_class(made, j)} for j in order],
    }
    if made.routing == "em":
        answer["distance_edges"] = made.distance_edges
        answer["layers"] = [
            {
                "name": layer.name,
                "grid": _grid(layer.grid),
                "entropy": layer.entropy,
                "activations": layer.activations,
                "distances": layer.distances,
            }
            for layer in made.layers
        ]
    return answer


def _of_class(made: Explanation, j: int) -> dict[str, Any]:
    """What there is of a class, in each iteration."""
    fields = {
        "probabilities": made.probabilities,
        "poses": made.poses,
        "heat": made.heat,
        "logit_change": made.logit_change,
        "largest_logit_change": made.largest_logit_change,
        "distances": made.distances,
    }
    return {name: np.ascontiguousarray(of[:, j]) for name, of in fields.items() if of is not None}


def _grid(grid: Grid) -> dict[str, Any]:
    return {"row_centers": grid.centers, "column_centers": grid.centers, "field": grid.field}


def _several(came: str) -> TooManyPicturesError:
    return TooManyPicturesError(f"/explain takes one image, or one pair of views; got {came}")
