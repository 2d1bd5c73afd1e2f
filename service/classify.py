"""What /classify answers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.contract.manifest import Manifest
from service.errors import InvalidFieldError, NoDecoderError
from service.inputs import Images
from service.pictures import to_base64_pngs
from service.repository import Served
from service.schemas import ClassifyQuery
from service.state import Service

# N images, J classes, D numbers of a pose, H rows, W columns, C channels

Floats = NDArray[np.float32]


def check_query(query: ClassifyQuery, served: Served) -> None:
    """The model can answer the query.

    Raises:
        InvalidFieldError: top_k is more than there are classes.
        NoDecoderError: a reconstruction of a model that has no decoder.
    """
    classes = len(served.engine.manifest.class_names)
    if query.top_k is not None and query.top_k > classes:
        raise InvalidFieldError(
            f"top_k must be 1 to {classes}, the classes of {served.model}; got {query.top_k}"
        )
    if query.reconstruction:
        require_decoder(served)


def require_decoder(served: Served) -> None:
    """The model can reconstruct.

    Raises:
        NoDecoderError: it cannot.
    """
    if not served.engine.has_decoder:
        raise NoDecoderError(
            f"{served.model}/{served.version} was made without a decoder; it cannot reconstruct"
        )


async def classify(served: Served, images: Images, query: ClassifyQuery, service: Service) -> dict[str, Any]:
    """The answer for images [N, H, W, C]; arrays in it stay arrays, for orjson."""
    manifest = served.engine.manifest
    probabilities, poses = await served.encode(images.pixels)  # [N, J], [N, J, D]
    results = [
        {"filename": name, **_result(p, v, manifest, query.top_k)}
        for name, p, v in zip(images.filenames, probabilities, poses, strict=True)
    ]
    if query.reconstruction:
        best = one_hot(probabilities.argmax(axis=1), manifest)
        pictures = await served.decode(poses, best)
        for result, picture in zip(results, await service.in_pool(to_base64_pngs, pictures), strict=True):
            result["reconstruction"] = picture
    return {**heading(served), "results": results}


def heading(served: Served) -> dict[str, Any]:
    """What every answer of a model begins with."""
    shape = served.engine.manifest.pose_shape
    answer: dict[str, Any] = {"model": served.model, "version": served.version}
    return answer if len(shape) == 1 else {**answer, "pose_shape": shape}


def one_hot(classes: NDArray[np.intp], manifest: Manifest) -> Floats:
    """Indices [N] as the decoder's mask [N, J]."""
    return np.eye(len(manifest.class_names), dtype=np.float32)[classes]


def _result(probabilities: Floats, poses: Floats, manifest: Manifest, top_k: int | None) -> dict[str, Any]:
    order = np.argsort(-probabilities, kind="stable")
    names = [manifest.class_names[j] for j in order]
    classes = [
        {"label": manifest.class_names[j], "probability": probabilities[j], "pose": poses[j]}
        for j in order[:top_k]
    ]
    return {"label": names[0], "labels": names[: manifest.objects_per_image], "classes": classes}
