"""The client for asyncio; what blocks runs in threads."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import tenacity
from numpy.typing import NDArray

from capsnet import (
    explain_requests,
    graph_requests,
    model_requests,
    picture_requests,
    reconstruct_requests,
)
from capsnet.answers import (
    Answer,
    Classification,
    Encoded,
    Floats,
    Levels,
    Model,
    Outcome,
    Pinned,
    Reconstructions,
    Segmentation,
)
from capsnet.base_client import BATCH, CONCURRENCY, BaseClient, check_stream
from capsnet.errors import CapsnetError, undecodable, unreachable
from capsnet.exchange import Exchange, Request, advance, params
from capsnet.explanations import Explanation
from capsnet.in_order import in_order
from capsnet.picture_requests import Preprocess
from capsnet.reconstruct_requests import Decoding, Sweep
from capsnet.retries import ONCE, Retry
from capsnet.uploads import Picture, Pictures

T = TypeVar("T")


class AsyncClient(BaseClient[httpx.AsyncClient]):
    """`Client` for asyncio: the same arguments, methods, answers and errors, but awaited.

    Close it with `aclose`, or use it in an `async with` statement. Files are read and answers decoded in
    threads.
    """

    async def classify(
        self,
        pictures: Pictures,
        *,
        top_k: int | None = None,
        reconstruction: bool = False,
        model_input: bool = False,
        min_probability: float | None = None,
        model: str | None = None,
        version: int | None = None,
        preprocess: Preprocess = "auto",
    ) -> Answer[Classification]:
        """Classify pictures; see `Client.classify`."""
        query = params(model=model, version=version, preprocess=preprocess, min_probability=min_probability)
        return await self._do(
            picture_requests.classify(
                pictures,
                top_k,
                query,
                self._request_bytes,
                reconstruction=reconstruction,
                model_input=model_input,
            )
        )

    async def classify_many(
        self,
        pictures: Iterable[Picture],
        *,
        top_k: int | None = None,
        min_probability: float | None = None,
        model: str | None = None,
        version: int | None = None,
        digest: str | None = None,
        preprocess: Preprocess = "auto",
        batch: int = BATCH,
        concurrency: int = CONCURRENCY,
    ) -> AsyncGenerator[Outcome, None]:
        """Classify a stream of pictures; see `Client.classify_many`.

        `pictures` is iterated in a thread. To stop early, use `contextlib.aclosing`: it cancels the requests
        in flight at once.
        """
        check_stream(pictures, batch, concurrency)
        question = model_requests.stream_query(
            model, version, digest, top_k=top_k, min_probability=min_probability, preprocess=preprocess
        )
        query, digest = await self._do(question)
        bundle = picture_requests.SameBundle(digest)
        batches = picture_requests.batches_of(pictures, batch)

        async def score(some: list[Picture]) -> list[Outcome]:
            return await self._do(picture_requests.score(some, query, self._request_bytes, bundle))

        async with aclosing(in_order(score, batches, concurrency)) as answers:
            async for outcomes in answers:
                for outcome in outcomes:
                    yield outcome

    async def reconstruct(
        self,
        image: Picture | None = None,
        *,
        pose: NDArray[Any] | Sequence[float] | None = None,
        label: str | None = None,
        perturbations: Mapping[int, float] | None = None,
        sweep: Sweep | None = None,
        model: str | None = None,
        version: int | None = None,
        preprocess: Preprocess = "auto",
    ) -> Reconstructions:
        """Decode a pose, or the pose of an image; see `Client.reconstruct`."""
        query = params(model=model, version=version, preprocess=preprocess)
        return await self._do(
            reconstruct_requests.reconstruct(Decoding(image, pose, label, perturbations, sweep), query)
        )

    async def reconstruct_grid(
        self,
        image: Picture | None = None,
        *,
        pose: NDArray[Any] | Sequence[float] | None = None,
        label: str | None = None,
        perturbations: Mapping[int, float] | None = None,
        sweep: Sweep | None = None,
        model: str | None = None,
        version: int | None = None,
        preprocess: Preprocess = "auto",
    ) -> Levels:
        """The pictures of `reconstruct` in a grid; see `Client.reconstruct_grid`."""
        query = params(model=model, version=version, preprocess=preprocess)
        return await self._do(
            reconstruct_requests.reconstruct_grid(Decoding(image, pose, label, perturbations, sweep), query)
        )

    async def segment(
        self,
        pictures: Pictures,
        *,
        k: int | None = None,
        min_probability: float | None = None,
        model: str | None = None,
        version: int | None = None,
        preprocess: Preprocess = "auto",
    ) -> Answer[Segmentation]:
        """Separate overlapping objects; see `Client.segment`."""
        query = params(model=model, version=version, preprocess=preprocess, min_probability=min_probability)
        return await self._do(picture_requests.segment(pictures, k, query, self._request_bytes))

    async def explain(
        self,
        picture: Picture,
        *,
        label: str | None = None,
        model: str | None = None,
        version: int | None = None,
        preprocess: Preprocess = "auto",
    ) -> Explanation:
        """Show how routing came to its answer, iteration by iteration; see `Client.explain`."""
        query = params(model=model, version=version, preprocess=preprocess)
        return await self._do(explain_requests.explain(picture, label, query))

    async def infer(self, pixels: Floats, *, model: str | None = None, version: int | None = None) -> Encoded:
        """The encoder's outputs as arrays; see `Client.infer`."""
        return await self._do(graph_requests.infer(pixels, model, version, self._request_bytes))

    async def decode(
        self, poses: Floats, mask: Floats, *, model: str | None = None, version: int | None = None
    ) -> Floats:
        """The decoder's output; see `Client.decode`."""
        return await self._do(graph_requests.decode(poses, mask, model, version, self._request_bytes))

    async def models(self) -> tuple[Model, ...]:
        """All models, with the state of each version."""
        return await self._do(model_requests.models())

    async def model(self, name: str) -> Model:
        """One model; versions that are served include their manifests."""
        return await self._do(model_requests.model(name))

    async def pin(self, model: str | None = None, version: int | None = None) -> Pinned:
        """Load the model and version that would answer now; see `Client.pin`."""
        return await self._do(model_requests.pin(model, version))

    async def ready(self) -> bool:
        """Whether the service is ready to answer requests; see `Client.ready`."""
        return await self._do(model_requests.ready(), retry=ONCE)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @staticmethod
    def _connect(**options: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(**options)

    async def _do(self, exchange: Exchange[T], *, retry: Retry | None = None) -> T:
        """Send the requests of the exchange."""
        retrying = tenacity.AsyncRetrying(**self._tenacity_options(retry))
        outcome: httpx.Response | CapsnetError | None = None
        while isinstance(step := await asyncio.to_thread(advance, exchange, outcome), Request):
            try:
                outcome = await retrying(self._send, step)
            except CapsnetError as error:
                outcome = error
        return step.result

    async def _send(self, request: Request) -> httpx.Response:
        try:
            response = await self._http.request(
                request.method, request.path, params=request.params, **request.body
            )
        except httpx.DecodingError as error:
            self._contact.made = True
            raise undecodable(error) from None
        except httpx.RequestError as error:
            raise unreachable(error) from None
        return self._check(response)
