"""/classify: class probabilities and poses of images."""

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray

from service.errors import InvalidFieldError
from service.http.answers import json_response
from service.http.direct_route import DirectRoute
from service.http.openapi import PROBLEMS
from service.http.png import to_base64_pngs
from service.http.request_log import log_fields
from service.inference.predictions import predictions
from service.models.interface import ServedModel
from service.routes.images import IMAGES_BODY, Images, decode_images, parse_images, read_images_body
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
    body = await read_images_body(request)  # no version is kept loaded by a slow sender
    async with service.while_wanted(request):
        given = await parse_images(body, service)
        async with service.models.use(query.model, query.version) as model:
            check_query(query, model)
            images = await decode_images(given, model.manifest, query.preprocess, service)
            log_fields(request, model=model.full_name, images=len(images.pixels))
            return json_response(await classify(model, images, query, service))


def check_query(query: ClassifyQuery, model: ServedModel) -> None:
    """The model can answer the query.

    Raises:
        InvalidFieldError: top_k is more than there are classes.
        NoDecoderError: a reconstruction of a model that has no decoder.
    """
    classes = len(model.manifest.class_names)
    if query.top_k is not None and query.top_k > classes:
        raise InvalidFieldError(
            f"top_k must be 1 to {classes}, the classes of {model.name}; got {query.top_k}"
        )
    if query.reconstruction:
        model.require_decoder()


async def classify(
    model: ServedModel, images: Images, query: ClassifyQuery, service: Service
) -> dict[str, Any]:
    """The answer for images [N, H, W, C]; arrays in it stay arrays, for orjson."""
    probabilities, poses = await model.encode(images.pixels)  # [N, J], [N, J, D]
    made = predictions(
        images.pixels, (probabilities, poses), model.manifest, query.top_k, query.min_probability
    )
    labels = (label for one in made for label in one["labels"])
    service.metrics.predicted(model.name, labels, model.manifest.class_names)
    results: list[dict[str, Any]] = [
        {"filename": filename, **prediction}
        for filename, prediction in zip(images.filenames, made, strict=True)
    ]
    pictures: dict[str, Floats] = {}
    if query.reconstruction:
        pictures["reconstruction"] = await model.decode_classes(poses, probabilities.argmax(axis=1))
    if query.model_input:
        pictures["model_input"] = images.pixels
    for field, pixels in pictures.items():
        for result, png in zip(results, await service.pool.run(to_base64_pngs, pixels), strict=True):
            result[field] = png
    return {**model.heading(), "results": results}
