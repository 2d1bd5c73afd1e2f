import asyncio
import hashlib
import json
import logging
import os
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from export.contract.manifest import Graph, Tensor, newest_version
from export.optimize import derive as graphs
from export.optimize.choice import MAX_ERROR
from export.optimize.derive import derive
from export.optimize.plan import FILE, PLAIN, plan_key, read_plan
from export.to_onnx import trace_encoder
from service.inference.graph_cache import SMALLEST_BYTES, UNUSED_DAYS, cached_graphs, measure_again
from service.inference.loading import load_engine
from service.inference.providers import EngineOptions
from service.models.remeasuring import remeasure_graphs
from service.models.repository import Repository
from service.observability.metrics import Metrics
from tests.support.live_process import live_process
from tests.support.live_service import START_S, settings_for
from tests.support.paths import ROOT
from tests.support.random_encoders import architecture_of
from tests.support.tiny_bundle import write_bundle
from training.config import CapsNetConfig
from training.models.capsnet import CapsNet

SHIPPED = ROOT / "models" / "capsnet-mnist"
# The narrowest that gains something; what a transform saves grows with the square of the channels.
NARROW = CapsNetConfig(conv_channels=64, primary_types=16, classes=3, class_dim=4, decoder_hidden=())
ARCHITECTURE = architecture_of(NARROW)
ONE_CORE = (1, 1)
MUCH = 1e9  # of waiting for a core: no machine is under such a load


@pytest.fixture(scope="module")
def encoder() -> bytes:
    return trace_encoder(CapsNet(NARROW).eval()).SerializeToString()


def described(encoder: bytes) -> Graph:
    """What a manifest would say of it."""
    pixels = Tensor(name="pixels", shape=(None, 28, 28, 1), dtype="float32", range=(0, 1))
    outputs = (
        Tensor(name="probabilities", shape=(None, 3), dtype="float32", range=(0, 1)),
        Tensor(name="poses", shape=(None, 3, 4), dtype="float32", range=(-1, 1)),
    )
    digest = hashlib.sha256(encoder).hexdigest()
    return Graph(file="encoder.onnx", sha256=digest, inputs=(pixels,), outputs=outputs)


@pytest.fixture(scope="module")
def cache(encoder, tmp_path_factory) -> Path:
    """A cache in which the encoder's plan has been made."""
    cache = tmp_path_factory.mktemp("cache")
    with cached_graphs(encoder, described(encoder), ARCHITECTURE, cache, ONE_CORE) as (plan, _):
        assert plan.variants != {"plain"}
    return cache


def narrow_bundle(encoder: bytes, folder: Path) -> Path:
    graph = onnx.load_model_from_string(encoder)
    return write_bundle(folder / "narrow" / "1", encoder=graph, parameters=asdict(NARROW))


def plan_file(encoder: bytes, cache: Path) -> Path:
    digest = hashlib.sha256(encoder).hexdigest()
    return cache / "cpu" / plan_key(digest, ARCHITECTURE, ONE_CORE, ort.__version__) / FILE


def rewrite_plan(folder: Path, **changes: object) -> None:
    plan = json.loads((folder / FILE).read_text())
    (folder / FILE).write_text(json.dumps(plan | changes))


def test_the_graphs_of_a_plan_compute_what_the_plain_one_does(encoder, cache):
    pixels = np.random.default_rng(0).random((5, 28, 28, 1), dtype=np.float32)
    expected = ort.InferenceSession(encoder).run(None, {"pixels": pixels})
    with cached_graphs(encoder, described(encoder), ARCHITECTURE, cache, ONE_CORE) as (plan, folder):
        for variant in plan.variants - {"plain"}:
            found = ort.InferenceSession(folder / f"{variant}.onnx").run(None, {"pixels": pixels})
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


def test_a_plan_is_made_once(encoder, cache):
    made = plan_file(encoder, cache).stat().st_mtime_ns
    with cached_graphs(encoder, described(encoder), ARCHITECTURE, cache, ONE_CORE) as (plan, folder):
        assert plan == read_plan(folder)
    assert plan_file(encoder, cache).stat().st_mtime_ns == made


def test_a_plan_that_another_process_has_just_made_is_taken(encoder, cache):
    folder = plan_file(encoder, cache).parent
    made = (folder / FILE).stat().st_mtime_ns
    assert derive(encoder, b"", folder, ONE_CORE, ARCHITECTURE) == read_plan(folder)
    assert (folder / FILE).stat().st_mtime_ns == made


def test_a_plan_of_another_user_is_read_and_needs_no_lock(encoder, cache, monkeypatch):
    folder = plan_file(encoder, cache).parent
    assert folder.stat().st_mode & 0o777 == 0o755
    monkeypatch.setattr(graphs, "FileLock", lambda *_, **__: pytest.fail("not ours to write"))
    assert derive(encoder, b"", folder, ONE_CORE, ARCHITECTURE) == read_plan(folder)


def test_a_plan_that_was_measured_under_load_is_taken_at_the_start(encoder, cache):
    folder = plan_file(encoder, cache).parent
    before = (folder / FILE).read_text()
    rewrite_plan(folder, waited=MUCH)
    assert derive(encoder, b"", folder, ONE_CORE, ARCHITECTURE).is_under_load
    (folder / FILE).write_text(before)


def test_a_variant_that_loses_too_much_by_its_transform_is_not_used(tmp_path):
    """Kernels that take differences of large numbers, in which the roundings of a transform do not cancel."""
    model = CapsNet(NARROW).eval()
    with torch.no_grad():
        model.primary_caps.conv.weight[:, :, 0, 0] += 100
        model.primary_caps.conv.weight[:, :, 0, 1] -= 100
    plan = derive(trace_encoder(model).SerializeToString(), b"", tmp_path / "plan", ONE_CORE, ARCHITECTURE)
    assert min(plan.errors.values()) > MAX_ERROR["capsnet"]
    assert plan.variants == {"plain"}


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": {}},
        {"sha256": {"../../somewhere/else": "0" * 64}},
        {"shared": {"variants": ["plain", "plain"], "borders": [-5]}},
        {"shared": {"variants": ["none such"], "borders": []}},
        {"alone": {"forms": ["one_axis"], "borders": []}},  # as plans were written once
    ],
)
def test_a_plan_that_was_not_written_by_us_is_none(encoder, cache, tmp_path, change):
    folder = shutil.copytree(plan_file(encoder, cache).parent, tmp_path / "plan")
    assert read_plan(folder) is not None
    rewrite_plan(folder, **change)
    assert read_plan(folder) is None


def test_a_plan_that_was_measured_under_load_is_measured_again_in_an_idle_minute(encoder, cache, tmp_path):
    async def scenario() -> None:
        models = narrow_bundle(encoder, tmp_path).parents[1]
        settings = settings_for(models, cache=cache, threads=1, default_model="narrow")
        repository = Repository(settings, Metrics())
        await repository.first_scan()
        (before,) = repository.loaded()
        assert before.describe()["encoder"].endswith("; measured under load")
        choosing = asyncio.create_task(remeasure_graphs(repository, quiet_s=0.01))
        async with asyncio.timeout(START_S):  # graphs are derived and measured first
            while repository.loaded() == [before]:
                await asyncio.sleep(0.01)
        choosing.cancel()
        await asyncio.gather(choosing, return_exceptions=True)
        (after,) = repository.loaded()
        assert after.engine.encoder.plan == read_plan(folder)
        await repository.close()

    folder = plan_file(encoder, cache).parent
    rewrite_plan(folder, waited=MUCH)
    asyncio.run(scenario())
    assert read_plan(folder).waited < MUCH


def test_a_measurement_that_fails_says_why(encoder, tmp_path):
    measuring = measure_again(tmp_path / "plan", (1, 1), architecture_of(CapsNetConfig()), b"no graph", b"")
    with pytest.raises(OSError, match="Error"):
        asyncio.run(measuring)


def test_only_the_graphs_in_use_are_kept(encoder, cache):
    folder = plan_file(encoder, cache).parent
    plan = read_plan(folder)
    kept = {file.stem for file in folder.iterdir() if file.name != FILE}
    assert kept == plan.variants - {"plain"}


def test_another_graph_or_another_number_of_threads_has_a_plan_of_its_own():
    keys = {
        plan_key(digest, ARCHITECTURE, threads, "1.31") for digest in "ab" for threads in ((1, 1), (2, 1))
    }
    assert len(keys) == 4


def test_a_damaged_graph_is_derived_again(encoder, cache):
    weights = next(plan_file(encoder, cache).parent.glob("*.weights"))
    intact = weights.read_bytes()
    weights.write_bytes(intact[: len(intact) // 2])
    with cached_graphs(encoder, described(encoder), ARCHITECTURE, cache, ONE_CORE) as (plan, folder):
        assert plan != PLAIN
        assert read_plan(folder) == plan


def test_what_has_not_been_used_for_long_is_forgotten(encoder, cache):
    old, recent, foreign = (cache / "cpu" / name for name in ("0" * 16, "1" * 16, "somebody else's"))
    for folder in (old, recent, foreign):
        folder.mkdir(exist_ok=True)
    long_ago = time.time() - (UNUSED_DAYS + 1) * 24 * 3600
    for folder in (old, foreign):
        os.utime(folder, (long_ago, long_ago))
    plan_file(encoder, cache).unlink()  # so that there is something to derive
    with cached_graphs(encoder, described(encoder), ARCHITECTURE, cache, ONE_CORE):
        assert [folder.exists() for folder in (old, recent, foreign)] == [False, True, True]


def test_a_cache_that_cannot_be_written_costs_the_next_start_time_and_nothing_else(encoder, tmp_path, caplog):
    cache = tmp_path / "a file"
    cache.write_text("in the way")
    with cached_graphs(encoder, described(encoder), ARCHITECTURE, cache, ONE_CORE) as (plan, folder):
        assert plan != PLAIN
        assert (folder / FILE).exists()
    assert not folder.exists()
    assert "derived again at every start" in caplog.text


def test_a_small_graph_stays_as_it_is(tmp_path):
    small = b"\0" * (SMALLEST_BYTES - 1)
    with cached_graphs(small, described(small), ARCHITECTURE, tmp_path, ONE_CORE) as (plan, _):
        assert plan == PLAIN
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_derived_from_runs_as_it_is_and_the_log_says_why(tmp_path, caplog):
    nonsense = b"\xff" * SMALLEST_BYTES
    with cached_graphs(nonsense, described(nonsense), ARCHITECTURE, tmp_path, ONE_CORE) as (plan, _):
        assert plan == PLAIN
    assert "no faster graphs: the process ended with status 1: Error parsing message" in caplog.text


# -- an engine that runs them ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped() -> Path:
    return max(SHIPPED.iterdir(), key=lambda version: int(version.name))


@pytest.fixture(scope="module")
def options() -> EngineOptions:
    return EngineOptions("cpu", 16, Path(os.environ["CAPSNET_CACHE"]), threads=2)


@pytest.fixture(scope="module")
def fast(shipped, options):
    return load_engine(shipped, "capsnet-mnist", options)


@pytest.fixture(scope="module")
def plain(shipped, options):
    return load_engine(shipped, "capsnet-mnist", options._replace(optimize=False))


def test_the_shipped_model_runs_faster_graphs_and_says_which(fast):
    faster = fast.encoder.plan.variants - {"plain"}
    assert faster
    assert all(variant in fast.encoder.describe() for variant in faster)


@pytest.mark.parametrize("images", [1, 3, 16])
@pytest.mark.parametrize("exclusive", [True, False])
def test_its_answers_are_those_of_the_plain_graph(fast, plain, images, exclusive):
    assert plain.encoder.describe() == "plain"
    pixels = np.random.default_rng(images).random((images, 28, 28, 1), dtype=np.float32)
    for a, b in zip(
        fast.encode(pixels, exclusive=exclusive), plain.encode(pixels, exclusive=exclusive), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


def test_matrix_capsules_run_with_routing_from_moments_and_answer_as_before(options):
    bundle = newest_version(ROOT / "models" / "matrix-capsnet-toys")
    fast = load_engine(bundle, "matrix-capsnet-toys", options)
    # Beside other work, one image may come sooner from the plain graph.
    assert "em_moments" in fast.encoder.plan.variants
    plain = load_engine(bundle, "matrix-capsnet-toys", options._replace(optimize=False))
    pixels = np.random.default_rng(0).random((16, 32, 32, 2), dtype=np.float32)
    for exclusive in (True, False):
        outputs = zip(*(engine.encode(pixels, exclusive=exclusive) for engine in (fast, plain)), strict=True)
        for a, b in outputs:
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


@pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read from /proc")
def test_after_the_start_the_service_holds_no_more_memory_than_documented(options, fast, tmp_path):
    models = tmp_path / "models"
    shutil.copytree(SHIPPED, models / SHIPPED.name)
    with live_process(models, tmp_path / "log", cache=options.cache, threads=2) as service:
        lines = Path(f"/proc/{service.running.pid}/status").read_text().splitlines()
        assert "faster graphs" not in service.log.read_text()  # they are those of the cache
    kibibytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}
    assert kibibytes["VmRSS"] <= 400 * 1024
    assert kibibytes["RssAnon"] <= 160 * 1024


def test_derived_graphs_that_fail_on_the_samples_are_not_used(encoder, cache, tmp_path, caplog):
    """As if a processor or a version of the runtime computed them wrongly."""
    own = shutil.copytree(cache, tmp_path / "cache")
    options = EngineOptions("cpu", 16, own, threads=1)
    bundle = narrow_bundle(encoder, tmp_path)
    assert load_engine(bundle, "narrow", options).encoder.describe() != "plain"
    folder = plan_file(encoder, own).parent
    for weights in folder.glob("*.weights"):
        values = np.fromfile(weights, np.float32)
        (1.5 * values).tofile(weights)
    names = json.loads((folder / FILE).read_text())["sha256"]
    rewrite_plan(
        folder, sha256={name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    )
    with caplog.at_level(logging.WARNING):
        engine = load_engine(bundle, "narrow", options)
    assert engine.encoder.describe() == "plain"
    assert "the faster graphs are not used: samples: " in caplog.text
