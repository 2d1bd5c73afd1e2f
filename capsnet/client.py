"""The blocking client."""

import threading
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
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
from capsnet.exchange import Exchange, Params, Request, advance, params
from capsnet.explanations import Explanation
from capsnet.picture_requests import Preprocess
from capsnet.reconstruct_requests import Decoding, Sweep
from capsnet.retries import ONCE, Retry
from capsnet.uploads import Picture, Pictures

T = TypeVar("T")


class Client(BaseClient[httpx.Client]):
    """A blocking client; threads may share it. Close it, or use it in a `with` statement.

    Every method raises CapsnetError if the service refuses the request; its subclass UnreachableError if
    there is no response; ValueError or TypeError for arguments that cannot be sent; and OSError for files
    that cannot be read. While the service is overloaded or away, requests are first repeated according to
    `retry`.

    Args:
        url: of the service, including the path in front of its routes if a proxy adds one.
        api_key: sent as `Authorization: Bearer`; None for a service without keys.
        timeout_s: seconds without a byte after which a request fails.
        connect_timeout_s: seconds after which a connection attempt fails.
        retry: how often and how long to repeat requests.
        request_bytes: maximum size of a request with pictures or arrays; only a single larger picture makes a
            larger one.

    Raises:
        ValueError: no http or https URL, a time of 0 or less, or a key that no header can hold or that stands
            beside a name in the URL.
    """

    def classify(
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
        """Classify pictures.

        Args:
            pictures: a path, bytes, a file opened in binary mode, a PIL image or an array [H, W] or
                [H, W, C]; several of those; or an array [N, H, W] or [N, H, W, C]. Arrays are uint8, 0-255,
                or floats, 0-1. An array of the model's size is used as it is; a uint8 array of another size
                is preprocessed like a file. Any number is allowed: the client splits it into several
                requests. For a model of two views each picture is a Pair(left, right) of files or PIL
                images, or an array whose C are the views.
            top_k: only the k most probable classes; by default all.
            reconstruction: also decode the most probable class of each picture.
            model_input: also return each picture after preprocessing, as the network sees it.
            min_probability: threshold of a confident result, 0-1; by default the model's own.
            model: name of the model; by default the service's default model.
            version: of the model; by default the newest loaded one, or what the operator's rule says.
            preprocess: "auto", the model's own rule for pictures of other sizes, or "off", a plain resize.

        Returns:
            One result per picture, in order, all from the same bundle.

        Raises:
            ChangedBundleError: the bundle was replaced under the same version between two requests.
        """
        query = params(model=model, version=version, preprocess=preprocess, min_probability=min_probability)
        return self._do(
            picture_requests.classify(
                pictures,
                top_k,
                query,
                self._request_bytes,
                reconstruction=reconstruction,
                model_input=model_input,
            )
        )

    def classify_many(
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
    ) -> Generator[Outcome, None, None]:
        """Classify a stream of pictures; yields one outcome for each, in order.

        A picture that cannot be read or classified yields a `Failed`, and the stream goes on. A service that
        stays away, a line too slow for a picture, a replaced bundle or a wrong argument ends the stream with
        an exception. All results come from one bundle. However long the stream is, memory holds
        `concurrency` requests and their outcomes. Closing the stream early waits for the requests in flight.

        Args:
            pictures: as for `classify`, one by one; consumed while the stream goes on.
            top_k: as for `classify`, like min_probability, model, version and preprocess.
            min_probability: threshold of a confident result.
            model: name of the model.
            version: of the model.
            digest: of the bundle that must answer, as from `pin`; by default the first one that answers.
            preprocess: "auto" or "off".
            batch: maximum pictures per request.
            concurrency: maximum requests in flight.
        """
        check_stream(pictures, batch, concurrency)
        question = model_requests.stream_query(
            model, version, digest, top_k=top_k, min_probability=min_probability, preprocess=preprocess
        )
        query, digest = self._do(question)
        return self._stream(pictures, query, picture_requests.SameBundle(digest), batch, concurrency)

    def _stream(
        self,
        pictures: Iterable[Picture],
        query: Params,
        bundle: picture_requests.SameBundle,
        batch: int,
        concurrency: int,
    ) -> Generator[Outcome, None, None]:
        stop = threading.Event()
        running: deque[Future[list[Outcome]]] = deque()
        with ThreadPoolExecutor(concurrency, thread_name_prefix="capsnet-client") as threads:
            try:
                for some in picture_requests.batches_of(pictures, batch):
                    exchange = picture_requests.score(some, query, self._request_bytes, bundle)
                    running.append(threads.submit(self._do, exchange, stop))
                    if len(running) == concurrency:
                        yield from running.popleft().result()
                while running:
                    yield from running.popleft().result()
            finally:
                stop.set()

    def reconstruct(
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
        """Decode a pose, or the pose of an image, to pictures.

        Args:
            image: a picture or a Pair as for `classify`, but no float array.
            pose: instead of an image; of any shape, with as many numbers as a pose of the model.
            label: the class to decode; required with a pose, by default the image's most probable class.
            perturbations: numbers to add to the pose, by dimension, all at once: one picture.
            sweep: deltas to add to one dimension after the other: one picture each.
            model: as for `classify`, like version and preprocess.
            version: of the model.
            preprocess: "auto" or "off".
        """
        query = params(model=model, version=version, preprocess=preprocess)
        return self._do(
            reconstruct_requests.reconstruct(Decoding(image, pose, label, perturbations, sweep), query)
        )

    def reconstruct_grid(
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
        """The pictures of `reconstruct` as a grid, uint8 [H, W, C]: rows are dimensions, columns deltas."""
        query = params(model=model, version=version, preprocess=preprocess)
        return self._do(
            reconstruct_requests.reconstruct_grid(Decoding(image, pose, label, perturbations, sweep), query)
        )

    def segment(
        self,
        pictures: Pictures,
        *,
        k: int | None = None,
        min_probability: float | None = None,
        model: str | None = None,
        version: int | None = None,
        preprocess: Preprocess = "auto",
    ) -> Answer[Segmentation]:
        """Separate overlapping objects: the k longest capsules are decoded one at a time.

        Args:
            pictures: as for `classify`.
            k: objects per picture; by default as many as the model expects, at least two.
            min_probability: as for `classify`, like model, version and preprocess.
            model: name of the model.
            version: of the model.
            preprocess: "auto" or "off".
        """
        query = params(model=model, version=version, preprocess=preprocess, min_probability=min_probability)
        return self._do(picture_requests.segment(pictures, k, query, self._request_bytes))

    def explain(
        self,
        picture: Picture,
        *,
        label: str | None = None,
        model: str | None = None,
        version: int | None = None,
        preprocess: Preprocess = "auto",
    ) -> Explanation:
        """Show how routing came to its answer, iteration by iteration; the last one is that of `classify`.

        Args:
            picture: one picture or Pair as for `classify`; of arrays one image, without N.
            label: only this class; by default all.
            model: as for `classify`, like version and preprocess.
            version: of the model.
            preprocess: "auto" or "off".

        Raises:
            CapsnetError: with `status` 409, the bundle has no explain graph.
        """
        query = params(model=model, version=version, preprocess=preprocess)
        return self._do(explain_requests.explain(picture, label, query))

    def infer(self, pixels: Floats, *, model: str | None = None, version: int | None = None) -> Encoded:
        """The encoder's outputs as arrays; input and output are sent in binary form.

        Args:
            pixels: float32 [N, H, W, C], 0-1, any N; used as they are.
            model: name of the model; without it every call first asks the service for its default model.
            version: of the model; by default the newest loaded one, or what the operator's rule says.

        Returns:
            probabilities [N, J] and poses [N, J, D], float32.
        """
        return self._do(graph_requests.infer(pixels, model, version, self._request_bytes))

    def decode(
        self, poses: Floats, mask: Floats, *, model: str | None = None, version: int | None = None
    ) -> Floats:
        """The decoder's output, float32 [N, H, W, C] in 0-1.

        Args:
            poses: float32 [N, J, D], as from `infer`, any N.
            mask: float32 [N, J], 1 for the class to decode and 0 for the others.
            model: as for `infer`, like version.
            version: of the model.
        """
        return self._do(graph_requests.decode(poses, mask, model, version, self._request_bytes))

    def models(self) -> tuple[Model, ...]:
        """All models, with the state of each version."""
        return self._do(model_requests.models())

    def model(self, name: str) -> Model:
        """One model; versions that are served include their manifests."""
        return self._do(model_requests.model(name))

    def pin(self, model: str | None = None, version: int | None = None) -> Pinned:
        """Load the model and version that would answer now, so that later requests can name it.

        Where a canary has a share of the requests, it is the version that answers most of them.
        """
        return self._do(model_requests.pin(model, version))

    def ready(self) -> bool:
        """Whether the service is ready to answer requests; asks once, without repeating.

        Raises:
            UnreachableError: there is no response.
        """
        return self._do(model_requests.ready(), retry=ONCE)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @staticmethod
    def _connect(**options: Any) -> httpx.Client:
        return httpx.Client(**options)

    def _do(
        self, exchange: Exchange[T], stop: threading.Event | None = None, *, retry: Retry | None = None
    ) -> T:
        """Send the requests of the exchange; once `stop` is set, no further one is begun.

        Raises:
            CancelledError: `stop` is set.
        """
        stop = stop or threading.Event()

        def sleep(seconds: float) -> None:
            if stop.wait(seconds):
                raise CancelledError

        retrying = tenacity.Retrying(sleep=sleep, **self._tenacity_options(retry))
        outcome: httpx.Response | CapsnetError | None = None
        while isinstance(step := advance(exchange, outcome), Request):
            sleep(0)
            try:
                outcome = retrying(self._send, step)
            except CapsnetError as error:
                outcome = error
        return step.result

    def _send(self, request: Request) -> httpx.Response:
        try:
            response = self._http.request(request.method, request.path, params=request.params, **request.body)
        except httpx.DecodingError as error:
            self._contact.made = True
            raise undecodable(error) from None
        except httpx.RequestError as error:
            raise unreachable(error) from None
        return self._check(response)
