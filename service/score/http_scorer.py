"""Scoring over HTTP. The client repeats requests, and halves a batch to find the picture that fails it."""

import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from capsnet import (
    AsyncClient,
    CapsnetError,
    ClassScore,
    Failed,
    Pair,
    Retry,
    Scored,
    UnreachableError,
)
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

KEY = "CAPSNET_API_KEY"  # only from the environment: everybody on a machine can read its command lines
UNAUTHORIZED = 401
BUG = 500
PLACE = re.compile(r"^image ([12]) of ([12]) \('picture'\): ")  # the client's name for what has none
UNBOUNDED = sys.maxsize  # attempts: only --retry-timeout ends them


@dataclass
class HttpScorer:
    """A version of a model that a service runs."""

    client: AsyncClient
    model: ChosenModel
    query: Query

    async def score(self, batch: Batch) -> list[Outcome]:
        """One outcome per picture, in one request if nothing fails.

        Raises:
            ScoreError: the service has gone, or refuses the query.
        """
        seen = self.client.classify_many(
            [_to_picture(picture) for picture in batch if isinstance(picture, LoadedPicture)],
            top_k=self.query.top_k,
            model=self.model.name,
            version=self.model.version,
            digest=self.model.digest,
            min_probability=self.query.min_probability,
            preprocess=self.query.preprocess,
            batch=len(batch),
            concurrency=1,
        )
        try:
            found = [outcome async for outcome in seen]
        except CapsnetError as error:
            raise _score_error(error) from None
        outcomes = iter(found)
        return [
            picture if isinstance(picture, Skipped) else self._outcome(picture.name, next(outcomes))
            for picture in batch
        ]

    def _outcome(self, name: str, seen: Scored | Failed) -> Outcome:
        if isinstance(seen, Failed):
            return Skipped(name, _without_place(seen.reason), getattr(seen.error, "status", None) == BUG)
        answer = seen.classification
        return Row(name, [self._capsule(one) for one in answer.classes], answer.confident, answer.blank)

    def _capsule(self, seen: ClassScore) -> ScoredClass:
        pose = as_written(seen.pose.ravel()) if self.query.poses else None
        return ScoredClass(seen.label, seen.probability, pose)


@asynccontextmanager
async def open_service(url: str, query: Query, retry_timeout_s: float) -> AsyncIterator[HttpScorer]:
    """Open the model of the query at a service.

    Args:
        url: of the service.
        query: the model, and how to score.
        retry_timeout_s: how long to repeat a request while the service is overloaded or away, in seconds.

    Raises:
        ScoreError: the service cannot be reached, does not become ready, or has no such model.
    """
    try:
        retry = Retry(attempts=UNBOUNDED, timeout_s=retry_timeout_s)
        client = AsyncClient(url, api_key=os.environ.get(KEY) or None, retry=retry)
    except ValueError as error:
        raise ScoreError(f"--url or {KEY}: {error}") from None
    async with client:
        try:
            await client.ready()
            model = await _choose(client, query)
        except UnreachableError as error:
            raise ScoreError(
                f"no service answers at {url} ({error.detail}); start one with `make serve`, name another "
                "with --url, or use --local, which needs none"
            ) from None
        except CapsnetError as error:
            raise _score_error(error) from None
        check_top_k(query, model)
        yield HttpScorer(client, model, query)


async def _choose(client: AsyncClient, query: Query) -> ChosenModel:
    """The version with which the service would answer the query now."""
    model = query.model or await _default_model(client)
    usable_versions(model, query.version, [one.version for one in (await client.model(model)).versions])
    pinned = await client.pin(model, query.version)  # loads it, or raises what is wrong with it
    # Again, by its number: the service keeps a version loaded that requests name, whatever is published.
    _, version, manifest, digest = await client.pin(model, pinned.version)
    return ChosenModel(model, version, manifest["class_names"], digest, manifest["views"])


def _to_picture(picture: LoadedPicture) -> bytes | Pair:
    return picture.content if picture.right is None else Pair(picture.content, picture.right)


def _without_place(reason: str) -> str:
    """What is wrong with an image that was sent alone: its files' names and numbers only say which view."""
    return PLACE.sub(lambda place: "" if place[2] == "1" else f"{VIEWS[int(place[1]) - 1]}: ", reason)


async def _default_model(client: AsyncClient) -> str:
    models = await client.models()
    default = next((model.name for model in models if model.default), None)
    return default or only_model([model.name for model in models])


def _score_error(error: CapsnetError) -> ScoreError:
    prefix = "" if error.status is None else "the service answered "
    remedy = f"; set {KEY}" if error.status == UNAUTHORIZED else ""
    return ScoreError(f"{prefix}{error}{remedy}")
