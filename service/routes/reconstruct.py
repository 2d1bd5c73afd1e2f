"""What /reconstruct answers: a pose, perturbed or swept, decoded into pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.contract.manifest import Manifest
from service.errors import InvalidFieldError, TooManyPicturesError, shown
from service.http.bodies import decode_files
from service.http.multipart import Upload
from service.http.png import to_base64_pngs
from service.models.loaded_model import LoadedModel
from service.routes.classify import heading, one_hot, require_decoder
from service.routes.schemas import Perturbation, Preprocess, ReconstructFields, ReconstructQuery, Sweep
from service.state import Service

# P pictures, J classes, D numbers of a pose, H rows, W columns, C channels

Floats = NDArray[np.float32]
Perturbations = list[Perturbation]

# A column is lost to rounding when stop is only this fraction of a step short of it.
STOP_SLACK = Decimal("1e-9")
DELTA_DIGITS = 12


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
    served: LoadedModel,
    fields: ReconstructFields,
    files: Sequence[Upload],
    rule: Preprocess,
    service: Service,
) -> Reconstructions:
    """Decode the pose that was given, or the picture's, as often as the perturbations ask for.

    Args:
        served: the model.
        fields: what is asked.
        files: the picture's, one for each view; none where a pose is given.
        rule: for a picture of another size than the model's.
        service: decodes the files.

    Raises:
        ServiceError: what was expected and what came.
    """
    require_decoder(served)
    manifest = served.engine.manifest
    wanted = _class_index(fields.label, manifest)
    pose = None if fields.pose is None else _given_pose(fields.pose, manifest)
    variants, columns = plan(fields, pose_size(manifest), service.settings.max_reconstructions)
    if pose is None or wanted is None:  # a given pose has a label: the fields were checked
        _check_views(files, manifest)
        pixels = await decode_files(files, manifest.preprocessing, rule, service)
        probabilities, poses = await served.encode(pixels)  # [1, J], [1, J, D]
        wanted = int(probabilities[0].argmax()) if wanted is None else wanted
        pose = poses[0, wanted]
    perturbed = pose + offsets(variants, len(pose))  # [P, D]
    classes = np.full(len(perturbed), wanted)
    everywhere = np.zeros((len(perturbed), len(manifest.class_names), len(pose)), np.float32)
    everywhere[:, wanted] = perturbed  # [P, J, D]; the mask hides the others
    pictures = await served.decode(everywhere, one_hot(classes, manifest))
    return Reconstructions(manifest.class_names[wanted], variants, perturbed, pictures, columns)


def chosen_version(fields: ReconstructFields, query: ReconstructQuery) -> tuple[str | None, int | None]:
    """The model and version that the body or the query names.

    Raises:
        InvalidFieldError: both name the same one of the two.
    """
    for name in ("model", "version"):
        if getattr(fields, name) is not None and getattr(query, name) is not None:
            raise InvalidFieldError(f"{name} stands in the query and in the body; give it in one of them")
    return (
        query.model if fields.model is None else fields.model,
        query.version if fields.version is None else fields.version,
    )


def json_answer(served: LoadedModel, made: Reconstructions) -> dict[str, Any]:
    """The JSON answer; blocks while it writes the PNG files."""
    entries = [
        {"perturbations": [p.model_dump() for p in perturbations], "pose": pose, "image": image}
        for perturbations, pose, image in zip(
            made.perturbations, made.poses, to_base64_pngs(made.pictures), strict=True
        )
    ]
    return {**heading(served), "label": made.label, "reconstructions": entries}


def plan(fields: ReconstructFields, dimensions: int, limit: int) -> tuple[list[Perturbations], int]:
    """The perturbations of each picture, dimension-major in a sweep, and the pictures per dimension.

    Raises:
        InvalidFieldError: a dimension that the pose has not, or has twice.
        TooManyPicturesError: more than `limit`.
    """
    if fields.sweep is None:
        perturbations = fields.perturbations or []
        _check_dimensions([p.dimension for p in perturbations], dimensions)
        return [perturbations], 1
    rows = list(range(dimensions)) if fields.sweep.dimensions is None else fields.sweep.dimensions
    _check_dimensions(rows, dimensions)
    columns = sweep_columns(fields.sweep)
    if len(rows) * columns > limit:
        raise TooManyPicturesError(
            f"the sweep asks for {len(rows)} dimensions x {columns:.6g} deltas; at most {limit} pictures "
            "(CAPSNET_MAX_RECONSTRUCTIONS): take a larger step, or fewer dimensions"
        )
    deltas = sweep_deltas(fields.sweep)
    return [[Perturbation(dimension=d, delta=delta)] for d in rows for delta in deltas], columns


def sweep_columns(sweep: Sweep) -> int:
    """How many deltas there are from start to stop, stop included."""
    start, stop, step = (Decimal(repr(number)) for number in (sweep.start, sweep.stop, sweep.step))
    return int((stop - start) / step + STOP_SLACK) + 1


def sweep_deltas(sweep: Sweep) -> list[float]:
    """The deltas, counted in decimals so that -0.25 to 0.25 by 0.05 has 0 exactly in the middle."""
    start, step = Decimal(repr(sweep.start)), Decimal(repr(sweep.step))
    exact = (start + column * step for column in range(sweep_columns(sweep)))
    return [float(round(delta, DELTA_DIGITS)) + 0.0 for delta in exact]  # + 0.0: no minus zero


def offsets(variants: list[Perturbations], dimensions: int) -> Floats:
    """What is added to the pose for each picture, [P, D]."""
    added = np.zeros((len(variants), dimensions), np.float32)
    for row, perturbations in zip(added, variants, strict=True):
        for perturbation in perturbations:
            row[perturbation.dimension] = perturbation.delta
    return added


def pose_size(manifest: Manifest) -> int:
    """D, the numbers of one class's flat pose."""
    return int(np.prod(manifest.pose_shape))


def _class_index(label: str | None, manifest: Manifest) -> int | None:
    if label is None:
        return None
    if label not in manifest.class_names:
        names = ", ".join(islice(manifest.class_names, 100))
        raise InvalidFieldError(
            f"label {shown(label)} is no class of {manifest.model}; the classes are {names}"
        )
    return manifest.class_names.index(label)


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


def _check_dimensions(asked: list[int], dimensions: int) -> None:
    seen: set[int] = set()
    for dimension in asked:
        if dimension >= dimensions:
            raise InvalidFieldError(f"dimension must be 0 to {dimensions - 1}, got {shown(dimension)}")
        if dimension in seen:
            raise InvalidFieldError(f"dimension {dimension} is given twice")
        seen.add(dimension)
