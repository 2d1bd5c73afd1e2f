"""/segment: overlapping objects taken apart, as in Sec. 6 of Sabour et al. 2017.

The longest capsules of an image are decoded one at a time: all others are masked, so each picture shows one
object alone, also where another one covers it.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray

from export.contract.confidence import are_blank, reaches, threshold
from service.errors import InvalidFieldError, TooManyPicturesError
from service.http.accept import VARY, prefers_png
from service.http.answers import json_response
from service.http.direct_route import DirectRoute
from service.http.openapi import JSON_OR_PNG, PROBLEMS
from service.http.png import brightness, color_of, overlay, to_base64_pngs, to_png_grid
from service.http.request_log import log_fields
from service.inference.predictions import rank_classes
from service.models.interface import ServedModel
from service.routes.images import IMAGES_BODY, Images, decode_images, parse_images, read_images_body
from service.routes.schemas import SegmentAnswer, SegmentQuery
from service.state import Service, service_of

# N images, K objects of each, J classes, D numbers of a pose, H rows, W columns, C channels

Floats = NDArray[np.float32]

routes = APIRouter(tags=["Pictures"], route_class=DirectRoute)

MIN_OBJECTS = 2  # by default: overlapping objects are more than one
# The paper gives an object every nonzero pixel, but a sigmoid is never zero; it fades around a stroke.
MASK_THRESHOLD = 0.5  # of the object's brightest pixel


@routes.post(
    "/segment",
    summary="Overlapping objects taken apart",
    response_class=Response,
    responses={200: {"model": SegmentAnswer, "content": JSON_OR_PNG}, **PROBLEMS},
    openapi_extra=IMAGES_BODY,
)
async def post_segment(request: Request, query: Annotated[SegmentQuery, Query()]) -> Response:
    """The k longest capsules decoded one at a time; for `Accept: image/png` the overlays side by side."""
    service = service_of(request)
    body = await read_images_body(request)
    async with service.while_wanted(request):
        given = await parse_images(body, service)
        async with service.models.use(query.model, query.version) as model:
            k = object_count(query, model)
            images = await decode_images(given, model.manifest, query.preprocess, service)
            log_fields(request, model=model.full_name, images=len(images.pixels))
            made = await segment(model, images, k, query.min_probability, service)
            if prefers_png(request):
                overlays = await service.pool.run(png_answer, made)
                return Response(overlays, media_type="image/png", headers=VARY)
            return json_response(await service.pool.run(json_answer, model, made), VARY)


@dataclass(frozen=True)
class Segments:
    """The objects of images, in each by descending probability.

    Attributes:
        filenames: where each image came from.
        labels: the objects' classes, K of each image.
        probabilities: [N, K].
        poses: [N, K, D].
        pictures: every object alone, [N, K, H, W, C] in 0-1.
        blank: whether the image shows nothing, [N].
        confident: whether each object is, K of each image; None where the model has no threshold.
    """

    filenames: list[str | None]
    labels: list[list[str]]
    probabilities: Floats
    poses: Floats
    pictures: Floats
    blank: NDArray[np.bool_]
    confident: list[list[bool]] | list[list[None]]


def object_count(query: SegmentQuery, model: ServedModel) -> int:
    """K: as requested; by default as many as the model expects, and at least two if it has two classes.

    Raises:
        InvalidFieldError: k is more than there are classes.
        NoDecoderError: the model cannot reconstruct.
    """
    model.require_decoder()
    manifest = model.manifest
    classes = len(manifest.class_names)
    if query.k is None:
        return min(classes, max(MIN_OBJECTS, manifest.objects_per_image))
    if query.k > classes:
        raise InvalidFieldError(f"k must be 1 to {classes}, the classes of {model.name}; got {query.k}")
    return query.k


async def segment(
    model: ServedModel, images: Images, k: int, min_probability: float | None, service: Service
) -> Segments:
    """Decode the k longest capsules of images [N, H, W, C], each with all others masked.

    Args:
        model: the model.
        images: the model's input.
        k: objects of each image.
        min_probability: from which on an object is confident; None for the model's threshold.
        service: has the limits.

    Raises:
        TooManyPicturesError: N * k is over CAPSNET_MAX_RECONSTRUCTIONS.
        ServiceError: the service is overloaded, or too late.
    """
    count, limit = len(images.pixels), service.settings.max_reconstructions
    if count * k > limit:
        raise TooManyPicturesError(
            f"{count} images x {k} objects are {count * k} pictures; at most {limit} "
            "(CAPSNET_MAX_RECONSTRUCTIONS): send fewer images, or a smaller k"
        )
    manifest = model.manifest
    probabilities, poses = await model.encode(images.pixels)  # [N, J], [N, J, D]
    classes = rank_classes(probabilities, k)  # [N, K]
    longest = np.take_along_axis(probabilities, classes, axis=1)  # [N, K]
    blank = are_blank(images.pixels)
    required = threshold(manifest, min_probability)
    confident = [[None] * k] * count if required is None else reaches(longest, blank, required).tolist()
    pictures = await model.decode_classes(np.repeat(poses, k, axis=0), classes.ravel())  # [N * K, H, W, C]
    return Segments(
        images.filenames,
        [[manifest.class_names[j] for j in row] for row in classes],
        longest,
        np.take_along_axis(poses, classes[:, :, None], axis=1),
        pictures.reshape(count, k, *pictures.shape[1:]),
        blank,
        confident,
    )


def json_answer(model: ServedModel, made: Segments) -> dict[str, Any]:
    """The JSON answer; blocks while it writes the PNG files."""
    results = []
    for index, (filename, pictures) in enumerate(zip(made.filenames, made.pictures, strict=True)):
        gray = brightness(pictures)  # [K, H, W]
        files = zip(to_base64_pngs(pictures), to_base64_pngs(masks(gray)), strict=True)
        objects = [
            {
                "label": made.labels[index][place],
                "confident": made.confident[index][place],
                "probability": made.probabilities[index, place],
                "pose": made.poses[index, place],
                "colour": color_of(place),
                "reconstruction": reconstruction,
                "mask": mask,
            }
            for place, (reconstruction, mask) in enumerate(files)
        ]
        [overlaid] = to_base64_pngs(overlay(gray)[None])
        blank = bool(made.blank[index])
        results.append({"filename": filename, "blank": blank, "overlay": overlaid, "objects": objects})
    return {**model.heading(), "results": results}


def png_answer(made: Segments) -> bytes:
    """The overlays of all images side by side; blocks while it writes the PNG file."""
    overlays = np.stack([overlay(brightness(pictures)) for pictures in made.pictures])  # [N, H, W, 3]
    return to_png_grid(overlays, len(overlays))


def masks(gray: Floats) -> Floats:
    """Which pixels belong to each object, from its brightness [K, H, W] in 0-1: 1 or 0, [K, H, W, 1].

    A pixel belongs to an object if it is at least half as bright as the object's brightest pixel. Where
    objects overlap, it belongs to several.
    """
    brightest = gray.max(axis=(1, 2), keepdims=True)
    belongs = (gray >= MASK_THRESHOLD * brightest) & (gray > 0)  # nothing belongs to a black picture
    return np.where(belongs, np.float32(1), np.float32(0))[..., None]
