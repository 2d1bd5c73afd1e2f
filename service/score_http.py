"""Scoring through a service: a batch is a request, repeated while the service is busy, halved if refused."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import orjson

from service.score_files import read_file
from service.score_query import (
    Outcome,
    Query,
    Row,
    ScoreError,
    Skipped,
    check_top_k,
    only_model,
    usable_versions,
)

DEFAULT_URL = "http://localhost:8000"
REQUEST_BYTES = 24 * 2**20  # of files in one request; a service takes bodies of 32 MiB unless told otherwise
TIMEOUT_S = 120  # longer than the service's own deadline, which answers with a reason
ATTEMPTS = 10
LONGEST_WAIT_S = 30
BUSY = {429, 503, 504}  # worth asking again
# What a single picture can do to its request: too large, another format, unreadable, or it hits a fault of
# the service, which a long job should outlive.
ABOUT_A_PICTURE = {413, 415, 422, 500}

Files = Sequence[tuple[Path, bytes]]


@dataclass(frozen=True)
class HttpScorer:
    """One version of a model behind a service: the same for all rows, even if a newer one is published."""

    client: httpx.AsyncClient
    model: str
    version: int
    class_names: Sequence[str]
    query: Query

    async def score(self, paths: Sequence[Path]) -> list[Outcome]:
        """One outcome per path, in one request, or a few where the files are large."""
        outcomes: list[Outcome] = []
        files: list[tuple[Path, bytes]] = []
        for path in paths:
            content = await asyncio.to_thread(read_file, path)
            if isinstance(content, Skipped) or _total_bytes(files) + len(content) > REQUEST_BYTES:
                outcomes += await self._classify(files)
                files = []
            if isinstance(content, Skipped):
                outcomes.append(content)
            else:
                files.append((path, content))
        return [*outcomes, *await self._classify(files)]

    async def _classify(self, files: Files) -> list[Outcome]:
        """One bad picture fails its request: halves are asked for until that one is alone."""
        if not files:
            return []
        answer = await _ask(self.client, "POST", "/classify", params=self._parameters(), files=_form(files))
        if answer.status_code in ABOUT_A_PICTURE:
            if len(files) == 1:
                return [Skipped(files[0][0], _detail(answer))]
            half = len(files) // 2
            return [*await self._classify(files[:half]), *await self._classify(files[half:])]
        results = _json(answer)["results"]
        return [
            Row(path, [(c["label"], c["probability"]) for c in result["classes"]])
            for (path, _), result in zip(files, results, strict=True)
        ]

    def _parameters(self) -> dict[str, str | int]:
        query = self.query
        top_k = {} if query.top_k is None else {"top_k": query.top_k}
        return {"model": self.model, "version": self.version, "preprocess": query.preprocess, **top_k}


@asynccontextmanager
async def open_service(url: str, query: Query) -> AsyncIterator[HttpScorer]:
    """The model that a service answers the query with.

    Raises:
        ScoreError: the service cannot be reached, is not ready, or has no such model.
    """
    async with httpx.AsyncClient(base_url=_checked_url(url), timeout=TIMEOUT_S) as client:
        try:
            await client.get("/healthz")
        except httpx.TransportError as error:
            raise ScoreError(
                f"no service answers at {url} ({error or type(error).__name__}); start one with `make serve`,"
                " name another with --url, or do without with --local"
            ) from None
        await _get(client, "/readyz")
        model = query.model or await _default_model(client)
        manifests = await _loaded(client, model)
        version = usable_versions(model, query.version, manifests)[0]
        class_names = manifests[version]["class_names"]
        check_top_k(query, model, class_names)
        yield HttpScorer(client, model, version, class_names, query)


def _checked_url(url: str) -> httpx.URL:
    try:
        checked = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ScoreError(f"--url {url}: {error}") from None
    if checked.scheme not in {"http", "https"} or not checked.host:
        raise ScoreError(f"--url must look like {DEFAULT_URL}, got {url!r}")
    return checked


async def _default_model(client: httpx.AsyncClient) -> str:
    models = (await _get(client, "/models"))["models"]
    default: str | None = next((model["name"] for model in models if model["default"]), None)
    return default or only_model([model["name"] for model in models])


async def _loaded(client: httpx.AsyncClient, model: str) -> dict[int, Any]:
    """The manifests of a model's loaded versions.

    Raises:
        ScoreError: there is no such model, or no version of it could be loaded.
    """
    path = f"/models/{quote(model, safe='')}"
    versions = (await _get(client, path))["versions"]
    manifests = {v["version"]: v["manifest"] for v in versions if v["state"] == "loaded"}
    if not manifests:
        raise ScoreError(f"{model} has no version that could be loaded; GET {path} says why")
    return manifests


async def _get(client: httpx.AsyncClient, path: str) -> Any:
    return _json(await _ask(client, "GET", path))


async def _ask(client: httpx.AsyncClient, method: str, path: str, **content: Any) -> httpx.Response:
    """The answer, asked for again while the service is overloaded or away for a moment.

    Raises:
        ScoreError: it stayed so.
    """
    for attempt in range(1, ATTEMPTS + 1):
        wait_s = 1.0
        try:
            answer = await client.request(method, path, **content)
        except httpx.TransportError as error:
            reason = f"{error.request.url} cannot be reached: {error or type(error).__name__}"
        else:
            if answer.status_code not in BUSY:
                return answer
            reason = _refusal(answer)
            wait_s = _retry_after_s(answer)
        if attempt < ATTEMPTS:
            await asyncio.sleep(wait_s)
    raise ScoreError(f"gave up after {ATTEMPTS} attempts: {reason}")


def _retry_after_s(answer: httpx.Response) -> float:
    """What Retry-After asks for, in seconds, within reason; 1 where it gives a date or is missing."""
    header = answer.headers.get("retry-after", "")
    return min(int(header), LONGEST_WAIT_S) if header.isdecimal() else 1.0


def _json(answer: httpx.Response) -> Any:
    """The body of a good answer.

    Raises:
        ScoreError: it is a refusal, or comes from something that is no capsnet service.
    """
    if answer.status_code != httpx.codes.OK:
        raise ScoreError(_refusal(answer))
    try:
        return orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        raise ScoreError(
            f"{answer.url} answered something other than JSON; is it a capsnet service?"
        ) from None


def _refusal(answer: httpx.Response) -> str:
    return f"{answer.url.copy_with(query=None)} answered {answer.status_code}: {_detail(answer)}"


def _detail(answer: httpx.Response) -> str:
    """The detail of a problem+json, or the beginning of whatever came instead."""
    try:
        return str(orjson.loads(answer.content)["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError):  # a proxy's page
        return answer.text[:200] or answer.reason_phrase


def _form(files: Files) -> list[tuple[str, tuple[str, bytes]]]:
    """The multipart fields; Linux takes bytes for names that are no text, and those cannot be sent."""
    return [("images", (os.fsencode(path.name).decode("utf-8", "replace"), file)) for path, file in files]


def _total_bytes(files: Files) -> int:
    return sum(len(content) for _, content in files)
