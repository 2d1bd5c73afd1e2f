"""capsnet-score: many pictures to one table, over HTTP or in process.

Everything streams: folders are walked as scoring goes on, a few batches are in flight at once, and rows are
written in the pictures' order as soon as their batch is done. Memory does not grow with the number of
pictures. One that cannot be read is reported on stderr and has no row.

Exit status: 0 every picture has a row; 1 some were skipped; 2 wrong usage, no service or nothing scored; 130
stopped with Ctrl-C, 141 the reader of stdout went away. However it ends, rows written before stay, whole.
"""

import argparse
import asyncio
import csv
import glob
import json
import os
import sys
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO
from urllib.parse import quote

import httpx
import numpy as np
import orjson
from numpy.typing import NDArray
from tqdm import tqdm

from export.contract.manifest import BundleError
from export.contract.pictures import PictureError, read_picture
from export.contract.preprocess import to_input

if TYPE_CHECKING:
    from service.engine import Engine

# N images, H rows, W columns, C channels, J classes

Floats = NDArray[np.float32]
Format = Literal["csv", "jsonl"]

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif"})
DEFAULT_URL = "http://localhost:8000"
BATCH = 32
CONCURRENCY = 4
REQUEST_BYTES = (
    24 * 2**20
)  # of files in one request; the service takes bodies of 32 MiB unless told otherwise
TIMEOUT_S = 120  # longer than the service's own deadline, which answers with a reason
ATTEMPTS = 10
LONGEST_WAIT_S = 30
BUSY = {429, 503, 504}  # worth asking again
ABOUT_A_PICTURE = {413, 415, 422}  # too large, another format, unreadable
STOPPED_BY_SIGNAL = 130  # what a shell gives a command that SIGINT ended
READER_LEFT = 141  # the same for SIGPIPE

EXAMPLES = """examples:
  capsnet-score 7.png                                           one picture, to the terminal
  capsnet-score digits/ --out scores.csv                        every picture in a folder and its subfolders
  capsnet-score 'scans/**/*.png' --out scores.jsonl             a pattern, quoted for more than a shell takes
  capsnet-score digits/ --out scores.csv --url http://gpu:8001  a service elsewhere
  capsnet-score digits/ --out scores.csv --local                no service: the model runs in this process

Folders and patterns give files with picture suffixes whose names do not begin with a dot, sorted; a file
named itself is taken whatever its suffix. A bad file is reported on stderr and has no row.

exit status: 0 every picture has a row, 1 some were skipped, 2 wrong usage, no service, or nothing was scored
"""


class ScoreError(Exception):
    """Scoring cannot begin or go on; the message says what was expected, what came and what to do."""


@dataclass(frozen=True)
class Query:
    """What is asked of every picture; None leaves the choice to the service, or asks for all classes."""

    model: str | None
    version: int | None
    top_k: int | None
    preprocess: Literal["auto", "off"]


@dataclass(frozen=True)
class Row:
    """A picture's classes and their probabilities, by falling probability, all of them or the top k."""

    path: Path
    classes: list[tuple[str, float]]


@dataclass(frozen=True)
class Skipped:
    """A picture that has no row, and why."""

    path: Path
    reason: str


Outcome = Row | Skipped


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors of the user's end with one line and status 2."""
    options = _parser().parse_args(arguments)
    try:
        sys.exit(asyncio.run(_score(options)))
    except KeyboardInterrupt:
        _say("interrupted; the rows written so far stay")
        sys.exit(STOPPED_BY_SIGNAL)
    except BrokenPipeError:  # as `| head` does once it has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails again
        sys.exit(READER_LEFT)
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        _say("--local needs onnxruntime: pip install -e '.[cpu]'")
        sys.exit(2)
    except (ScoreError, OSError) as error:
        _say(str(error))
        sys.exit(2)


def _say(message: str) -> None:
    """One line on stderr, above the progress bar."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)  # file names may hold anything
    tqdm.write(f"capsnet-score: {line}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="capsnet-score",
        description="Class probabilities of many pictures, as CSV or JSON lines.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="file, folder or quoted pattern")
    parser.add_argument("--out", default="-", metavar="FILE", help="table to write (default: -, stdout)")
    parser.add_argument(
        "--format", choices=["csv", "jsonl"], help="default: as --out ends, .csv or .jsonl; csv on stdout"
    )
    parser.add_argument("--url", metavar="URL", help=f"the service (default: {DEFAULT_URL})")
    parser.add_argument(
        "--local", action="store_true", help="run the model in this process, without a service"
    )
    parser.add_argument(
        "--models",
        metavar="PATH",
        help="with --local: folders of bundles (default: $CAPSNET_MODELS, else models)",
    )
    parser.add_argument("--model", metavar="NAME", help="default: the service's default model")
    parser.add_argument("--version", type=_whole, metavar="N", help="default: the newest")
    parser.add_argument(
        "--top-k", type=_whole, metavar="K", help="the K most probable classes (default: all)"
    )
    parser.add_argument(
        "--preprocess",
        choices=["auto", "off"],
        default="auto",
        help="off: a plain resize instead of the model's own rule (default: auto)",
    )
    parser.add_argument(
        "--batch", type=_whole, default=BATCH, metavar="N", help=f"pictures at a time (default: {BATCH})"
    )
    parser.add_argument(
        "--concurrency",
        type=_whole,
        default=CONCURRENCY,
        metavar="N",
        help=f"batches in flight at once (default: {CONCURRENCY})",
    )
    return parser


def _whole(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return number


async def _score(options: argparse.Namespace) -> int:
    """Score what the command line asks for; the exit status."""
    kind = choose_format(options.out, options.format)
    pictures = _at_least_one(find_pictures(options.paths), options.paths)
    async with _open_scorer(options) as scorer:
        scored = skipped = 0
        with open_output(options.out) as file, _progress_bar(options) as bar:
            table = Table(file, kind, scorer.class_names)
            batches = in_batches(pictures, options.batch)
            async with aclosing(in_order(scorer.score, batches, options.concurrency)) as done:
                async for outcomes in done:
                    rows = [outcome for outcome in outcomes if isinstance(outcome, Row)]
                    table.write(rows)
                    _report(outcomes)
                    bar.update(len(outcomes))
                    scored, skipped = scored + len(rows), skipped + len(outcomes) - len(rows)
        _say(f"{scored} scored with {scorer.model}/{scorer.version}, {skipped} skipped")
    if scored == 0:
        return 2
    return 1 if skipped else 0


def _open_scorer(options: argparse.Namespace) -> AbstractAsyncContextManager["Scorer"]:
    query = Query(options.model, options.version, options.top_k, options.preprocess)
    if options.local:
        if options.url:
            raise ScoreError("--url names a service, --local does without one; give one of the two")
        return open_local(options.models, query, options.batch)
    if options.models:
        raise ScoreError("--models is for --local; a service has its own CAPSNET_MODELS")
    return open_service(options.url or DEFAULT_URL, query)


def _progress_bar(options: argparse.Namespace) -> "tqdm[Any]":
    """A bar on a terminal, unless the rows go to one as well; only for a bar are the pictures counted."""
    shown = sys.stderr.isatty() and not (options.out == "-" and sys.stdout.isatty())
    total = sum(1 for _ in find_pictures(options.paths)) if shown else None
    return tqdm(total=total, unit=" pictures", file=sys.stderr, disable=not shown)


def _report(outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, Skipped):
            _say(f"skipped {outcome.path}: {outcome.reason}")


async def in_order(
    score: Callable[[list[Path]], Coroutine[Any, Any, list[Outcome]]],
    batches: Iterable[list[Path]],
    concurrency: int,
) -> AsyncGenerator[list[Outcome], None]:
    """Outcomes of each batch in the order of the batches, with up to `concurrency` of them in flight."""
    running: deque[asyncio.Task[list[Outcome]]] = deque()
    try:
        for batch in batches:
            running.append(asyncio.create_task(score(batch)))
            if len(running) == concurrency:
                yield await running.popleft()
        while running:
            yield await running.popleft()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


# Pictures


def find_pictures(arguments: Sequence[str]) -> Iterator[Path]:
    """The pictures that files, folders and patterns stand for, in their order; folders are read as it goes.

    Raises:
        ScoreError: there is no such file or folder, or the pattern matches nothing; before the first picture.
    """
    return chain.from_iterable([_expand(argument) for argument in arguments])


def _expand(argument: str) -> Iterable[Path]:
    path = Path(argument)
    if argument and path.is_dir():
        return walk(path)
    if argument and path.exists():  # before patterns: a file may be called [7].png
        return [path]
    if not glob.has_magic(argument):
        raise ScoreError(f"{argument!r}: no such file or folder")
    matches = glob.iglob(argument, recursive=True)  # noqa: PTH207  # Path.glob takes no absolute patterns
    found = sorted(path for path in map(Path, matches) if _is_picture_name(path.name) and not path.is_dir())
    if not found:
        raise ScoreError(f"{argument!r} matches no picture ({', '.join(sorted(SUFFIXES))})")
    return found


def walk(folder: Path) -> Iterator[Path]:
    """Pictures in a folder and its subfolders, by name; one folder's names are in memory at a time and level.

    Links to files are followed, links to folders are not: they may lead round in circles.
    """
    try:
        with os.scandir(folder) as entries:
            found = sorted(
                (entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if _wanted(entry)
            )
    except OSError:
        yield folder  # reading it as a picture fails as well, and is reported like any other bad file
        return
    for name, is_folder in found:
        if is_folder:
            yield from walk(folder / name)
        else:
            yield folder / name


def _wanted(entry: os.DirEntry[str]) -> bool:
    if entry.is_dir(follow_symlinks=False):
        return not entry.name.startswith(".")
    return _is_picture_name(entry.name) and (entry.is_file() or entry.is_symlink())  # no pipes, no sockets


def _is_picture_name(name: str) -> bool:
    """Whether it looks like a picture; `._7.png` is what macOS leaves beside 7.png and is none."""
    return not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES


def _at_least_one(pictures: Iterator[Path], arguments: Sequence[str]) -> Iterator[Path]:
    """The same pictures; ScoreError if there are none, before a service is asked or a file overwritten."""
    first = next(pictures, None)
    if first is None:
        raise ScoreError(f"no picture ({', '.join(sorted(SUFFIXES))}) in {', '.join(arguments)}")
    return chain([first], pictures)


def in_batches(pictures: Iterator[Path], size: int) -> Iterator[list[Path]]:
    """The pictures in lists of `size`, the last one shorter."""
    while batch := list(islice(pictures, size)):
        yield batch


# Over HTTP


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
        waiting: list[tuple[Path, bytes]] = []
        for path in paths:
            content = await asyncio.to_thread(_read_file, path)
            if isinstance(content, Skipped):
                outcomes += [*await self._classify(waiting), content]
                waiting = []
                continue
            if len(content) + sum(len(other) for _, other in waiting) > REQUEST_BYTES:
                outcomes += await self._classify(waiting)
                waiting = []
            waiting.append((path, content))
        return [*outcomes, *await self._classify(waiting)]

    async def _classify(self, files: Sequence[tuple[Path, bytes]]) -> list[Outcome]:
        """One bad picture fails its request: halves are asked for until that one is alone."""
        if not files:
            return []
        answer = await _patiently(
            lambda: self.client.post("/classify", params=self._parameters(), files=_form(files))
        )
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
async def open_service(url: str, query: Query) -> AsyncIterator["Scorer"]:
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
        _json(await _patiently(lambda: client.get("/readyz")))
        name = query.model or await _default_model(client)
        versions = _json(await _patiently(lambda: client.get(f"/models/{quote(name, safe='')}")))["versions"]
        manifests = {v["version"]: v["manifest"] for v in versions if v["state"] == "loaded"}
        version = _choose_version(name, query.version, manifests)
        class_names = manifests[version]["class_names"]
        check_top_k(query, name, class_names)
        yield HttpScorer(client, name, version, class_names, query)


def _checked_url(url: str) -> httpx.URL:
    try:
        checked = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ScoreError(f"--url {url}: {error}") from None
    if checked.scheme not in {"http", "https"} or not checked.host:
        raise ScoreError(f"--url must look like {DEFAULT_URL}, got {url!r}")
    return checked


async def _default_model(client: httpx.AsyncClient) -> str:
    models = _json(await _patiently(lambda: client.get("/models")))["models"]
    default = next((model["name"] for model in models if model["default"]), None)
    return _choose_model(default, [model["name"] for model in models])


async def _patiently(ask: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """The answer, asked for again while the service is overloaded or away for a moment.

    Raises:
        ScoreError: it stayed so.
    """
    for attempt in range(1, ATTEMPTS + 1):
        wait_s = 1.0
        try:
            answer = await ask()
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


def _form(files: Sequence[tuple[Path, bytes]]) -> list[tuple[str, tuple[str, bytes]]]:
    return [("images", (_utf8(path.name), content)) for path, content in files]


def _utf8(name: str) -> str:
    """A file name that can be sent: Linux takes bytes for names that are no text."""
    return os.fsencode(name).decode("utf-8", "replace")


def _read_file(path: Path) -> bytes | Skipped:
    try:
        return path.read_bytes()
    except OSError as error:
        return Skipped(path, error.strerror or str(error))


# In process


@dataclass(frozen=True)
class LocalScorer:
    """One version of a model in this process; pictures are decoded in threads while others are classified."""

    engine: "Engine"
    model: str
    version: int
    class_names: Sequence[str]
    query: Query
    max_pixels: int
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def score(self, paths: Sequence[Path]) -> list[Outcome]:
        """One outcome per path, in one run of the model."""
        decoded = await asyncio.to_thread(lambda: [self._decode(path) for path in paths])
        pixels = [picture for picture in decoded if not isinstance(picture, Skipped)]
        if not pixels:
            return [picture for picture in decoded if isinstance(picture, Skipped)]
        async with self.turn:  # an engine may be called from one thread at a time
            probabilities, _ = await asyncio.to_thread(self.engine.encode, np.stack(pixels))  # [N, J]
        classes = iter(self._classes(probabilities))
        return [
            picture if isinstance(picture, Skipped) else Row(path, next(classes))
            for path, picture in zip(paths, decoded, strict=True)
        ]

    def _decode(self, path: Path) -> Floats | Skipped:
        """The model's input [H, W, C] in 0-1."""
        content = _read_file(path)
        if isinstance(content, Skipped):
            return content
        try:
            picture = read_picture(content, self.max_pixels)
            return to_input(picture, self.engine.manifest.preprocessing, self.query.preprocess)
        except PictureError as error:
            return Skipped(path, str(error))

    def _classes(self, probabilities: Floats) -> list[list[tuple[str, float]]]:
        """Probabilities [N, J] as the service answers them."""
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, : self.query.top_k]  # [N, k]
        # The service's way of writing float32 gives the same digits here as over HTTP.
        written = orjson.loads(orjson.dumps(probabilities, option=orjson.OPT_SERIALIZE_NUMPY))
        return [
            [(self.class_names[j], values[j]) for j in ranks]
            for values, ranks in zip(written, order.tolist(), strict=True)
        ]


@asynccontextmanager
async def open_local(models: str | None, query: Query, batch: int) -> AsyncIterator["Scorer"]:
    """The model that a service over the same folders would answer the query with.

    Args:
        models: folders of bundles, separated as in PATH; default: CAPSNET_MODELS.
        query: which of them, and what is asked.
        batch: pictures per run, at most.

    Raises:
        ScoreError: there is no such model, or it cannot be loaded.
    """
    from service.engine import DeviceError, Placement, load_engine
    from service.repository import find_bundles
    from service.settings import SettingsError, read_settings

    try:
        settings = read_settings(models=models)
        found = find_bundles(settings.roots)
        if not found:
            raise ScoreError(f"no bundle <model>/<version>/ in {settings.models}; say where with --models")
        default = settings.default_model if settings.default_model in found else None
        model = query.model or _choose_model(default, sorted(found))
        if model not in found:
            raise ScoreError(f"no model {model!r} in {settings.models}; there are {', '.join(sorted(found))}")
        version = _choose_version(model, query.version, found[model])
        placement = Placement(settings.device, batch, settings.cache)
        engine = await asyncio.to_thread(load_engine, found[model][version], model, placement)
    except BundleError as error:
        raise ScoreError(f"{model}/{version} cannot be used: {error}") from None
    except (SettingsError, DeviceError) as error:
        raise ScoreError(str(error)) from None
    check_top_k(query, model, engine.manifest.class_names)
    yield LocalScorer(engine, model, version, engine.manifest.class_names, query, settings.max_pixels)


Scorer = HttpScorer | LocalScorer


def _choose_model(default: str | None, names: Sequence[str]) -> str:
    """The model for a query that names none: the default, or the only one."""
    if default is not None:
        return default
    if len(names) == 1:
        return names[0]
    raise ScoreError(f"there are several models: choose one with --model from {', '.join(names)}")


def _choose_version(model: str, asked: int | None, versions: Iterable[int]) -> int:
    """The version asked for, or the newest."""
    known = sorted(versions)
    if not known:
        raise ScoreError(f"{model} has no version that could be loaded; GET /models/{model} says why")
    if asked is not None and asked not in known:
        raise ScoreError(f"{model} has no version {asked}; there are {', '.join(map(str, known))}")
    return known[-1] if asked is None else asked


def check_top_k(query: Query, model: str, class_names: Sequence[str]) -> None:
    """There are as many classes as are asked for.

    Raises:
        ScoreError: there are fewer.
    """
    if query.top_k is not None and query.top_k > len(class_names):
        raise ScoreError(
            f"--top-k must be 1 to {len(class_names)}, the classes of {model}; got {query.top_k}"
        )


# The table


class Table:
    """Rows as CSV, with a column for each class in the model's order, or as one JSON object a line.

    A CSV cell stays empty where the class is not among the top k.
    """

    def __init__(self, file: TextIO, kind: Format, class_names: Sequence[str]) -> None:
        self._file = file
        self._class_names = class_names
        # "\n", not CSV's own "\r\n", of which cut and awk keep a half.
        self._csv = csv.writer(file, lineterminator="\n") if kind == "csv" else None
        if self._csv:
            self._csv.writerow(["path", "label", "probability", *class_names])

    def write(self, rows: Iterable[Row]) -> None:
        """Append rows, and flush: who reads the file meanwhile sees whole rows."""
        for row in rows:
            label, probability = row.classes[0]
            if self._csv:
                by_name = dict(row.classes)
                self._csv.writerow([row.path, label, probability, *map(by_name.get, self._class_names)])
            else:
                classes = [{"label": name, "probability": p} for name, p in row.classes]
                line = {"path": str(row.path), "label": label, "probability": probability, "classes": classes}
                self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()


def choose_format(out: str, asked: Format | None) -> Format:
    """The format asked for, or the one the file's name tells.

    Raises:
        ScoreError: it tells none.
    """
    if asked:
        return asked
    if out == "-":
        return "csv"
    match Path(out).suffix.lower():
        case ".csv":
            return "csv"
        case ".jsonl":
            return "jsonl"
    raise ScoreError(f"--out {out} ends neither in .csv nor in .jsonl; say which with --format")


@contextmanager
def open_output(out: str) -> Iterator[TextIO]:
    """The file, or stdout for `-`; UTF-8, and names that are no text as the bytes they are."""
    if out != "-":
        with Path(out).open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            yield file
        return
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    yield sys.stdout


if __name__ == "__main__":
    main()
