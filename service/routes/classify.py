"""What /classify answers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.contract.confidence import are_blank, are_confident
from export.contract.manifest import Manifest
from service.errors import InvalidFieldError, NoDecoderError
from service.http.bodies import Images
from service.http.png import to_base64_pngs
from service.models.loaded_model import LoadedModel
from service.routes.schemas import ClassifyQuery
from service.state import Service

# N images, J classes, D numbers of a pose, H rows, W columns, C channels

Floats = NDArray[np.float32]


def check_query(query: ClassifyQuery, served: LoadedModel) -> None:
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


def require_decoder(served: LoadedModel) -> None:
    """The model can reconstruct.

    Raises:
        NoDecoderError: it cannot.
    """
    if not served.engine.has_decoder:
        raise NoDecoderError(
            f"{served.model}/{served.version} was made without a decoder; it cannot reconstruct"
        )


async def classify(
    served: LoadedModel, images: Images, query: ClassifyQuery, service: Service
) -> dict[str, Any]:
    """The answer for images [N, H, W, C]; arrays in it stay arrays, for orjson."""
    manifest = served.engine.manifest
    probabilities, poses = await served.encode(images.pixels)  # [N, J], [N, J, D]
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
        best = one_hot(probabilities.argmax(axis=1), manifest)
        pictures = await served.decode(poses, best)
        for result, picture in zip(results, await service.in_pool(to_base64_pngs, pictures), strict=True):
            result["reconstruction"] = picture
    return {**heading(served), "results": results}


def heading(served: LoadedModel) -> dict[str, Any]:
    """What every answer of a model begins with."""
    shape = served.engine.manifest.pose_shape
    answer: dict[str, Any] = {"model": served.model, "version": served.version, "digest": served.digest}
    return answer if len(shape) == 1 else {**answer, "pose_shape": shape}


def one_hot(classes: NDArray[np.intp], manifest: Manifest) -> Floats:
    """Indices [N] as the decoder's mask [N, J]."""
    return np.eye(len(manifest.class_names), dtype=np.float32)[classes]


def _labels(order: NDArray[np.intp], manifest: Manifest) -> dict[str, Any]:
    labels = [manifest.class_names[j] for j in order[: manifest.objects_per_image]]
    return {"label": labels[0], "labels": labels}


def _classes(
    order: NDArray[np.intp], probabilities: Floats, poses: Floats, manifest: Manifest
) -> list[dict[str, Any]]:
    return [
        {"label": manifest.class_names[j], "probability": probabilities[j], "pose": poses[j]} for j in order
    ]
