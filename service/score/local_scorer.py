"""Scoring in this process, with the model that a service of the same folders would use."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.contract.architecture import CPU_BATCH
from export.contract.manifest import BundleError
from export.contract.pictures import PictureError
from export.contract.samples import in_pieces
from service.inference.engine import Engine
from service.inference.loading import load_engine
from service.inference.model_input import decode_image
from service.inference.predictions import predictions
from service.inference.providers import DeviceError, EngineOptions, engine_options
from service.models.scanner import find_bundles
from service.models.traffic import Traffic, read_traffic
from service.score.query import (
    VIEWS,
    Batch,
    ChosenModel,
    LoadedPicture,
    Outcome,
    Query,
    Row,
    ScoredClass,
    ScoreError,
    Skipped,
    as_written,
    check_top_k,
    only_model,
    usable_versions,
)
from service.settings import Settings, SettingsError, read_settings

# N images, H rows, W columns, C channels, J classes

Floats = NDArray[np.float32]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalScorer:
    """A version of a model in this process; pictures are decoded in threads while others are classified."""

    engine: Engine
    model: ChosenModel
    query: Query
    max_pixels: int
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def score(self, batch: Batch) -> list[Outcome]:
        """One outcome per picture."""
        decoded = await asyncio.to_thread(lambda: [self._decode(picture) for picture in batch])
        images = [image for image in decoded if not isinstance(image, Skipped)]
        rows = iter(await self._classify(np.stack(images)) if images else ())
        return [
            image if isinstance(image, Skipped) else Row(picture.name, *next(rows))
            for picture, image in zip(batch, decoded, strict=True)
        ]

    def _decode(self, picture: LoadedPicture | Skipped) -> Floats | Skipped:
        """The model's input [H, W, C] in 0-1."""
        if isinstance(picture, Skipped):
            return picture
        try:
            files = [picture.content] if picture.right is None else [picture.content, picture.right]
            facts = self.engine.manifest.preprocessing
            return decode_image(files, facts, self.query.preprocess, self.max_pixels)
        except PictureError as error:
            view = "" if picture.right is None else f"{VIEWS[error.view]}: "
            return Skipped(picture.name, f"{view}{error}")
        except Exception as error:  # a bug of ours must not end the run for one picture
            return Skipped(picture.name, f"cannot be processed: {type(error).__name__}: {error}")

    async def _classify(self, pixels: Floats) -> list[tuple[list[ScoredClass], bool | None, bool]]:
        """For each image [N, H, W, C] its classes, and whether it is confident and blank."""
        async with self.turn:  # each run takes all cores: several at once would not be faster
            probabilities, poses = await asyncio.to_thread(
                in_pieces, self.engine.encode, self._at_once(), pixels
            )
        made = predictions(
            pixels, (probabilities, poses), self.engine.manifest, self.query.top_k, self.query.min_probability
        )
        return [
            ([self._capsule(one) for one in image["classes"]], image["confident"], image["blank"])
            for image in as_written(made)
        ]

    def _at_once(self) -> int:
        """Pictures in a run: on a CPU no more than are faster together, and of matrix capsules few."""
        engine = self.engine
        if engine.device != "cpu":
            return engine.max_batch
        return min(engine.max_batch, CPU_BATCH[engine.manifest.architecture])

    def _capsule(self, seen: Mapping[str, Any]) -> ScoredClass:
        return ScoredClass(seen["label"], seen["probability"], seen["pose"] if self.query.poses else None)


@asynccontextmanager
async def open_local(models: str | None, query: Query, batch: int) -> AsyncIterator[LocalScorer]:
    """`load_local`, as `open_service` opens a service."""
    yield await asyncio.to_thread(load_local, models, query, batch)


def load_local(models: str | None, query: Query, batch: int, threads: int | None = None) -> LocalScorer:
    """Load the model of the query that a service of the same folders would use.

    Args:
        models: folders of bundles, separated as in PATH; default: CAPSNET_MODELS.
        query: the model, and how to score.
        batch: maximum pictures per run of the model.
        threads: that compute, on a CPU; default: CAPSNET_THREADS.

    Raises:
        ScoreError: there is no such model, or it cannot be loaded.
    """
    try:
        settings = read_settings(models=models)
        name, bundles = _find(settings, query.model)
        rule = _rule(settings, name) if query.version is None else None
        versions = usable_versions(name, query.version, bundles, rule)
        options = engine_options(settings)._replace(max_batch=batch)
        if threads is not None:
            options = options._replace(threads=threads)
        version, engine = _load_first(name, versions, bundles, options)
    except (SettingsError, DeviceError) as error:
        raise ScoreError(str(error)) from None
    manifest = engine.manifest
    model = ChosenModel(name, version, manifest.class_names, manifest.digest, manifest.views)
    check_top_k(query, model)
    return LocalScorer(engine, model, query, settings.max_pixels)


def _find(settings: Settings, requested: str | None) -> tuple[str, Mapping[int, Path]]:
    """The requested model, else the default, else the only one; and the bundles of its versions."""
    found = find_bundles(settings.roots)
    if not found:
        raise ScoreError(f"no bundle <model>/<version>/ in {settings.models}; name the folder with --models")
    if requested is not None and requested not in found:
        raise ScoreError(f"no model {requested!r} in {settings.models}; there are {', '.join(sorted(found))}")
    default = settings.default_model if settings.default_model in found else None
    model = requested or default or only_model(sorted(found))
    return model, found[model]


def _rule(settings: Settings, model: str) -> Traffic | None:
    """Which version answers requests to a service that name none.

    Raises:
        ScoreError: the rule is broken, so that nobody knows.
    """
    try:
        return read_traffic([root / model for root in settings.roots])
    except (OSError, ValueError) as error:
        raise ScoreError(f"{error}; fix the file, or name a version with --version") from None


def _load_first(
    model: str, versions: Sequence[int], bundles: Mapping[int, Path], options: EngineOptions
) -> tuple[int, Engine]:
    """The first version that can be loaded, and its engine; logs why the ones before it cannot.

    Raises:
        ScoreError: none can be loaded; says why the last one cannot.
        DeviceError: the device is not available.
    """
    first, *rest = versions
    try:
        return first, load_engine(bundles[first], model, options)
    except (BundleError, OSError) as error:
        fault = f"{model}/{first} cannot be used: {error}"
    if not rest:
        raise ScoreError(fault)
    log.warning("%s; falling back to %s/%d", fault, model, rest[0])
    return _load_first(model, rest, bundles, options)
