"""Scoring through a service: a batch is a request of the client, which repeats, waits and halves."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from capsnet import (
    AsyncClient,
    CapsnetError,
    ClassScore,
    Failed,
    ModelVersion,
    Pair,
    Retry,
    Scored,
    UnreachableError,
)
from service.score.query import (
    Batch,
    Capsule,
    Chosen,
    Loaded,
    Outcome,
    Query,
    Row,
    ScoreError,
    Skipped,
    as_written,
    check_top_k,
    only_model,
    usable_versions,
)

KEY = "CAPSNET_API_KEY"  # only from the environment: everybody on a machine can read its command lines
UNAUTHORIZED = 401
UNBOUNDED = sys.maxsize  # attempts: time alone decides


@dataclass(frozen=True)
class HttpScorer:
    """One version of a model behind a service."""

    client: AsyncClient
    chosen: Chosen
    query: Query

    async def score(self, batch: Batch) -> list[Outcome]:
        """One outcome per picture, in one request if all goes well.

        Raises:
            ScoreError: the service is gone, or does not answer this question any more.
        """
        seen = self.client.classify_many(
            [_to_send(picture) for picture in batch if isinstance(picture, Loaded)],
            top_k=self.query.top_k,
            model=self.chosen.model,
            version=self.chosen.version,
            digest=self.chosen.digest,
            min_probability=self.query.min_probability,
            preprocess=self.query.preprocess,
            batch=len(batch),
            concurrency=1,
        )
        try:
            outcomes = iter([outcome async for outcome in seen])
        except CapsnetError as error:
            raise _told(error) from None
        return [
            picture if isinstance(picture, Skipped) else self._outcome(picture.name, next(outcomes))
            for picture in batch
        ]

    def _outcome(self, name: str, seen: Scored | Failed) -> Outcome:
        if isinstance(seen, Failed):
            return Skipped(name, seen.reason)
        answer = seen.classification
        return Row(name, [self._capsule(one) for one in answer.classes], answer.confident, answer.blank)

    def _capsule(self, seen: ClassScore) -> Capsule:
        pose = as_written(seen.pose.ravel()) if self.query.poses else None
        return Capsule(seen.label, seen.probability, pose)


@asynccontextmanager
async def open_service(url: str, query: Query, patience_s: float) -> AsyncIterator[HttpScorer]:
    """The model that a service answers the query with.

    Args:
        url: where the service is.
        query: which model, and what is asked.
        patience_s: seconds to insist on an answer where the service is overloaded or gone.

    Raises:
        ScoreError: the service cannot be reached, does not become ready, or has no such model.
    """
    try:
        retry = Retry(attempts=UNBOUNDED, total_s=patience_s)
        client = AsyncClient(url, api_key=os.environ.get(KEY) or None, retry=retry)
    except ValueError as error:
        raise ScoreError(f"--url or {KEY}: {error}") from None
    async with client:
        try:
            await client.ready()
            chosen = await _choose(client, query)
        except UnreachableError as error:
            raise ScoreError(
                f"no service answers at {url} ({error.detail}); start one with `make serve`, name another "
                "with --url, or do without with --local"
            ) from None
        except CapsnetError as error:
            raise _told(error) from None
        check_top_k(query, chosen)
        yield HttpScorer(client, chosen, query)


async def _choose(client: AsyncClient, query: Query) -> Chosen:
    """The version that the service answers the query with now."""
    model = query.model or await _default_model(client)
    versions = await _versions(client, model)
    usable_versions(model, query.version, versions)
    pinned = await client.pin(model, query.version)  # loads it, or has the service say what is wrong
    # Once more by its number: the service keeps what is named, whatever is published meanwhile.
    _, version, manifest, digest = await client.pin(model, pinned.version)
    return Chosen(model, version, manifest["class_names"], digest, manifest["views"])


def _to_send(picture: Loaded) -> bytes | Pair:
    return picture.content if picture.right is None else Pair(picture.content, picture.right)


async def _default_model(client: AsyncClient) -> str:
    models = await client.models()
    default = next((model.name for model in models if model.default), None)
    return default or only_model([model.name for model in models])


async def _versions(client: AsyncClient, model: str) -> dict[int, ModelVersion]:
    """Those of which there is more to say than that they are refused."""
    versions = (await client.model(model)).versions
    return {one.version: one for one in versions if one.state != "refused"}


def _told(error: CapsnetError) -> ScoreError:
    answered = "" if error.status is None else "the service answered "
    remedy = f"; set {KEY}" if error.status == UNAUTHORIZED else ""
    return ScoreError(f"{answered}{error}{remedy}")
