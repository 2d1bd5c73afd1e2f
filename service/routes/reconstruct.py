"""/reconstruct: a pose, perturbed or swept, decoded into pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray

from export.contract.manifest import Manifest
from export.contract.preprocess import Rule
from service.errors import InvalidFieldError
from service.http.accept import VARY, prefers_png
from service.http.answers import json_response
from service.http.decoding import decode_files
from service.http.direct_route import DirectRoute
from service.http.multipart import Upload
from service.http.openapi import JSON_OR_PNG, PROBLEMS
from service.http.png import to_base64_pngs, to_png_grid
from service.http.request_log import log_fields
from service.models.interface import ServedModel
from service.routes.perturbations import Perturbations, offsets, plan_pictures
from service.routes.reconstruct_body import RECONSTRUCT_BODY, parse_fields, read_reconstruct_body
from service.routes.schemas import ReconstructAnswer, ReconstructFields, ReconstructQuery
from service.state import Service, service_of

# P pictures, J classes, D numbers of a pose, H rows, W columns, C channels

Floats = NDArray[np.float32]

routes = APIRouter(tags=["Pictures"], route_class=DirectRoute)


@routes.post(
    "/reconstruct",
    summary="Pictures decoded from poses",
    response_class=Response,
    responses={200: {"model": ReconstructAnswer, "content": JSON_OR_PNG}, **PROBLEMS},
    openapi_extra=RECONSTRUCT_BODY,
)
async def post_reconstruct(request: Request, query: Annotated[ReconstructQuery, Query()]) -> Response:
    """A pose decoded plain, perturbed or swept; as JSON, or as one PNG grid for `Accept: image/png`.

    The two views of a model that has two stand side by side in every picture.
    """
    service = service_of(request)
    body = await read_reconstruct_body(request)
    async with service.while_wanted(request):
        fields, files = await parse_fields(body, service)
        async with service.models.use(*chosen_version(fields, query)) as model:
            images = len(files) // model.manifest.views  # 0 where a pose is given
            log_fields(request, model=model.full_name, images=images)
            made = await reconstruct(model, fields, files, query.preprocess, service)
            if prefers_png(request):
                grid = await service.pool.run(to_png_grid, made.pictures, made.columns)
                return Response(grid, media_type="image/png", headers=VARY)
            return json_response(await service.pool.run(json_answer, model, made), VARY)


@dataclass(frozen=True)
class Reconstructions:
    """Decoded poses.

    Attributes:
        label: the class that was decoded.
        perturbations: what was done to the pose, for each picture.
        poses: the poses as decoded, [P, D].
        pictures: [P, H, W, C] in 0-1.
        columns: pictures per dimension of a sweep, 1 otherwise.
    """

    label: str
    perturbations: list[Perturbations]
    poses: Floats
    pictures: Floats
    columns: int


async def reconstruct(
    model: ServedModel,
    fields: ReconstructFields,
    files: Sequence[Upload],
    rule: Rule,
    service: Service,
) -> Reconstructions:
    """Decode the given pose, or the picture's, once for each perturbation.

    Args:
        model: the model.
        fields: of the request.
        files: the picture's, one for each view; none if a pose is given.
        rule: for a picture of another size than the model's.
        service: has the threads and the limits.

    Raises:
        ServiceError: the request does not fit the model, or the service is overloaded.
    """
    model.require_decoder()
    manifest = model.manifest
    wanted = None if fields.label is None else model.class_index(fields.label)
    pose = None if fields.pose is None else _given_pose(fields.pose, manifest)
    variants, columns = plan_pictures(fields, pose_size(manifest), service.settings.max_reconstructions)
    if pose is None or wanted is None:  # a given pose has a label: the fields were checked
        _check_views(files, manifest)
        pixels = await decode_files(files, manifest.preprocessing, rule, service.settings, service.pool)
        probabilities, poses = await model.encode(pixels)  # [1, J], [1, J, D]
        wanted = int(probabilities[0].argmax()) if wanted is None else wanted
        pose = poses[0, wanted]
    perturbed = pose + offsets(variants, len(pose))  # [P, D]
    everywhere = np.zeros((len(perturbed), len(manifest.class_names), len(pose)), np.float32)
    everywhere[:, wanted] = perturbed  # [P, J, D]; the mask hides the others
    pictures = await model.decode_classes(everywhere, np.full(len(perturbed), wanted))
    return Reconstructions(manifest.class_names[wanted], variants, perturbed, pictures, columns)


def chosen_version(fields: ReconstructFields, query: ReconstructQuery) -> tuple[str | None, int | None]:
    """The model and version that the body or the query names.

    Raises:
        InvalidFieldError: both name the same one of the two.
    """
    for name in ("model", "version"):
        if getattr(fields, name) is not None and getattr(query, name) is not None:
            raise InvalidFieldError(f"{name} is in the query and in the body; give it in one of them")
    return (
        query.model if fields.model is None else fields.model,
        query.version if fields.version is None else fields.version,
    )


def json_answer(model: ServedModel, made: Reconstructions) -> dict[str, Any]:
    """The JSON answer; blocks while it writes the PNG files."""
    entries = [
        {"perturbations": [p.model_dump() for p in perturbations], "pose": pose, "image": image}
        for perturbations, pose, image in zip(
            made.perturbations, made.poses, to_base64_pngs(made.pictures), strict=True
        )
    ]
    return {**model.heading(), "label": made.label, "reconstructions": entries}


def pose_size(manifest: Manifest) -> int:
    """D, the numbers of one class's flat pose."""
    return int(np.prod(manifest.pose_shape))


def _check_views(files: Sequence[Upload], manifest: Manifest) -> None:
    if len(files) != manifest.views:
        one, pair = "one picture as image", "a pair of views as image, two files, the left view first"
        expected = pair if manifest.views == 2 else one
        raise InvalidFieldError(f"{manifest.model} takes {expected}; got {len(files)}")


def _given_pose(pose: list[float], manifest: Manifest) -> Floats:
    if len(pose) != pose_size(manifest):
        raise InvalidFieldError(
            f"a pose of {manifest.model} has {pose_size(manifest)} numbers, got {len(pose)}"
        )
    return np.array(pose, np.float32)
