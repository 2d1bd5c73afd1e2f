"""/classify: class probabilities and poses of images."""

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray

from export.contract.confidence import are_blank, are_confident
from export.contract.manifest import Manifest
from service.errors import InvalidFieldError
from service.http.answers import json_response
from service.http.bodies import Images, check_classify, decode_images, read_classify
from service.http.direct_route import DirectRoute
from service.http.openapi import PROBLEMS
from service.http.png import to_base64_pngs
from service.http.request_log import note
from service.models.loaded_model import LoadedModel
from service.routes.images import IMAGES_BODY
from service.routes.schemas import ClassifyAnswer, ClassifyQuery
from service.state import Service, service_of

# N images, J classes, D numbers of a pose, H rows, W columns, C channels

Floats = NDArray[np.float32]

routes = APIRouter(tags=["Pictures"], route_class=DirectRoute)


@routes.post(
    "/classify",
    summary="Class probabilities and poses of images",
    response_class=Response,
    responses={200: {"model": ClassifyAnswer}, **PROBLEMS},
    openapi_extra=IMAGES_BODY,
)
async def post_classify(request: Request, query: Annotated[ClassifyQuery, Query()]) -> Response:
    """Multipart with one or many files in `images`, one raw image file, or a .npy array.

    A picture of exactly the model's size is taken as one of its data set's: it is not moved, and only
    inverted if three quarters of its border are light and the model is for light on dark. A picture of
    another size goes through the model's own rule.

    A model of two views takes files in pairs, the left view first, and gives one result for each pair.
    """
    service = service_of(request)
    body = await read_classify(request)  # no version is kept loaded by a slow sender
    async with service.while_wanted(request):
        asked = await check_classify(body, service)
        async with service.repository.use(query.model, query.version) as model:
            check_query(query, model)
            images = await decode_images(asked, model.engine.manifest, query.preprocess, service)
            note(request, model=model.full_name, images=len(images.pixels))
            return json_response(await classify(model, images, query, service))


def check_query(query: ClassifyQuery, model: LoadedModel) -> None:
    """The model can answer the query.

    Raises:
        InvalidFieldError: top_k is more than there are classes.
        NoDecoderError: a reconstruction of a model that has no decoder.
    """
    classes = len(model.engine.manifest.class_names)
    if query.top_k is not None and query.top_k > classes:
        raise InvalidFieldError(
            f"top_k must be 1 to {classes}, the classes of {model.name}; got {query.top_k}"
        )
    if query.reconstruction:
        model.require_decoder()


async def classify(
    model: LoadedModel, images: Images, query: ClassifyQuery, service: Service
) -> dict[str, Any]:
    """The answer for images [N, H, W, C]; arrays in it stay arrays, for orjson."""
    manifest = model.engine.manifest
    probabilities, poses = await model.encode(images.pixels)  # [N, J], [N, J, D]
    blank = are_blank(images.pixels)
    confident = are_confident(probabilities, blank, manifest, query.min_probability)
    order = np.argsort(-probabilities, axis=1, kind="stable")  # [N, J]
    results = [
        {
            "filename": images.filenames[n],
            **_labels(order[n], manifest),
            "confident": confident[n],
            "blank": bool(blank[n]),
            "classes": _classes(order[n, : query.top_k], probabilities[n], poses[n], manifest),
        }
        for n in range(len(order))
    ]
    if query.reconstruction:
        pictures = await model.decode_classes(poses, probabilities.argmax(axis=1))
        for result, picture in zip(results, await service.in_pool(to_base64_pngs, pictures), strict=True):
            result["reconstruction"] = picture
    return {**model.heading(), "results": results}


def _labels(order: NDArray[np.intp], manifest: Manifest) -> dict[str, Any]:
    labels = [manifest.class_names[j] for j in order[: manifest.objects_per_image]]
    return {"label": labels[0], "labels": labels}


def _classes(
    order: NDArray[np.intp], probabilities: Floats, poses: Floats, manifest: Manifest
) -> list[dict[str, Any]]:
    return [
        {"label": manifest.class_names[j], "probability": probabilities[j], "pose": poses[j]} for j in order
    ]
