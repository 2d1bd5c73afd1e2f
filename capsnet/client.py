"""The blocking client."""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import tenacity
from numpy.typing import NDArray

from capsnet import graph_requests, model_requests, picture_requests, reconstruct_requests
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
from capsnet.errors import CapsnetError, unreachable
from capsnet.exchange import Exchange, Params, Request, advance, params
from capsnet.picture_requests import Preprocess
from capsnet.reconstruct_requests import Decoding, Sweep
from capsnet.retries import ONCE, Retry
from capsnet.uploads import Picture, Pictures

T = TypeVar("T")


class Client(BaseClient[httpx.Client]):
    """A client that blocks; threads may share it. Close it, or use it in a `with`.

    Every method raises CapsnetError when the service refuses, UnreachableError, which is one, when nobody
    answers, ValueError for arguments that cannot be sent, and OSError for files that cannot be read. What is
    overloaded or away for a moment is asked again first, as `retry` says.

    Args:
        url: where the service is, with the path in front of its routes, if a proxy gives it one.
        api_key: sent as `Authorization: Bearer`; None for a service without keys.
        timeout_s: seconds without a byte after which a request is given up.
        connect_timeout_s: the same while a connection is made.
        retry: how long to insist.
        request_bytes: pictures and arrays are sent in requests of up to so many bytes; only a larger single
            picture makes a larger one.

    Raises:
        ValueError: no http or https URL, or a time of 0 or less.
    """

    def classify(
        self,
        pictures: Pictures,
        *,
        top_k: int | None = None,
        reconstruction: bool = False,
        min_probability: float | None = None,
        model: str | None = None,
        version: int | None = None,
        preprocess: Preprocess = "auto",
    ) -> Answer[Classification]:
        """What is seen in pictures.

        Args:
            pictures: a path, bytes, a file opened in binary mode, a PIL image or an array [H, W] or
                [H, W, C]; several of those; or an array [N, H, W] or [N, H, W, C]. An array is uint8, 0-255,
                or floats, 0-1. One of the model's size is taken as it is; levels of another size are
                prepared as a file of them would be. Any number: they are sent in several requests where need
                be. For a model of two views each is a Pair(left, right) of files or PIL images, or the views
                are the C of an array.
            top_k: the k most probable classes; all of them by default.
            reconstruction: also decode the best class of each picture.
            min_probability: what is confident reaches this, 0-1; by default the model's own threshold.
            model: its name; by default the service's default model.
            version: by default the newest one loaded.
            preprocess: "auto", the model's own rule for pictures of other sizes, or "off", a plain resize.

        Returns:
            One result for each picture, in order, all from the same bundle.

        Raises:
            ChangedBundleError: it was replaced under the same version between two requests.
        """
        query = params(model=model, version=version, preprocess=preprocess, min_probability=min_probability)
        return self._do(
            picture_requests.classify(pictures, top_k, reconstruction, query, self._request_bytes)
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
    ) -> Iterator[Outcome]:
        """What is seen in a stream of pictures, one outcome for each, in their order.

        A picture that cannot be read, sent or classified makes a `Failed`, and the stream goes on; a service
        that stays away, a bundle that is replaced or a wrong argument ends it with an exception. One bundle
        answers for all pictures.
        In memory are `concurrency` requests and the outcomes of as many, however long the stream is. Whoever
        stops early waits for the requests under way.

        Args:
            pictures: as `classify` takes them one by one; asked for as the stream goes on.
            top_k: as for `classify`; as are min_probability, model, version and preprocess.
            min_probability: what is confident reaches this.
            model: its name.
            version: its number.
            digest: of the bundle that is to answer, such as `pin` tells; by default whichever does first.
            preprocess: "auto" or "off".
            batch: pictures in one request, at most.
            concurrency: requests under way at once, at most.
        """
        check_stream(batch, concurrency)
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
    ) -> Iterator[Outcome]:
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
        """Pictures decoded from a pose, or from the pose that an image has.

        Args:
            image: as `classify` takes one, a Pair among them, but no float32 array.
            pose: instead of an image; of any shape, with as many numbers as the model's poses have.
            label: the class to decode; needed with a pose, by default an image's most probable.
            perturbations: numbers to add to the pose by dimension, all at once: one picture.
            sweep: deltas to add to one dimension after the other: one picture each.
            model: as for `classify`; as are version and preprocess.
            version: its number.
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
        """The pictures of `reconstruct` in one, uint8 [H, W, C]: a row per dimension, a column per delta."""
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
        """Overlapping objects taken apart: the k longest capsules decoded one at a time.

        Args:
            pictures: as `classify` takes them.
            k: objects per picture; by default as many as the model expects, at least two.
            min_probability: as for `classify`.
            model: as for `classify`; as are version and preprocess.
            version: its number.
            preprocess: "auto" or "off".
        """
        query = params(model=model, version=version, preprocess=preprocess, min_probability=min_probability)
        return self._do(picture_requests.segment(pictures, k, query, self._request_bytes))

    def infer(self, pixels: Floats, *, model: str | None = None, version: int | None = None) -> Encoded:
        """The encoder's outputs as arrays, which go over the wire as they lie in memory.

        Args:
            pixels: float32 [N, H, W, C], 0-1, any N; nothing is done to them.
            model: its name; without it every call first asks the service for its default.
            version: by default the newest one loaded.

        Returns:
            probabilities [N, J] and poses [N, J, D], float32.
        """
        return self._do(graph_requests.infer(pixels, model, version, self._request_bytes))

    def decode(
        self, poses: Floats, mask: Floats, *, model: str | None = None, version: int | None = None
    ) -> Floats:
        """The decoder's output, float32 [N, H, W, C] in 0-1.

        Args:
            poses: float32 [N, J, D], as `infer` gives them, any N.
            mask: float32 [N, J], 1 for the class to decode and 0 for the others.
            model: as for `infer`; as is version.
            version: its number.
        """
        return self._do(graph_requests.decode(poses, mask, model, version, self._request_bytes))

    def models(self) -> tuple[Model, ...]:
        """Every model and what has become of its versions."""
        return self._do(model_requests.models())

    def model(self, name: str) -> Model:
        """One model; its loaded versions have their manifests."""
        return self._do(model_requests.model(name))

    def pin(self, model: str | None = None, version: int | None = None) -> Pinned:
        """The model and version that a request for these gets now, to be named from then on; loads it."""
        return self._do(model_requests.pin(model, version))

    def ready(self) -> bool:
        """Whether requests will be answered; asked once, so that it also answers while they will not.

        Raises:
            UnreachableError: nobody answers.
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
        except httpx.RequestError as error:
            raise unreachable(error) from None
        return self._check(response)
