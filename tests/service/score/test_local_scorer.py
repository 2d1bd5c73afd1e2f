"""Models that capsnet-score runs itself."""

import asyncio

import numpy as np

from export.contract.processors import usable_cpus
from service.inference.engine import Engine
from service.score.local_scorer import load_local
from service.score.query import Query
from tests.support.paths import MODELS
from tests.support.tiny_bundle import write_bundle


def test_matrix_capsules_are_encoded_few_at_a_time_however_many_pictures_travel_together(monkeypatch):
    sizes: list[int] = []
    really = Engine.encode

    def encode(
        engine: Engine, pixels: np.ndarray, *, exclusive: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        sizes.append(len(pixels))
        return really(engine, pixels, exclusive=exclusive)

    query = Query("matrix-capsnet-toys", None, 1, "auto", poses=False)
    scorer = load_local(str(MODELS), query, batch=32)
    monkeypatch.setattr(Engine, "encode", encode)
    pixels = np.random.default_rng(0).random((5, 32, 32, 2), np.float32)
    together = asyncio.run(scorer._classify(pixels))
    assert sizes == [2, 2, 1]
    alone = asyncio.run(scorer._classify(pixels[3:4]))
    assert together[3][0][0].label == alone[0][0][0].label
    assert len(together) == 5


def test_the_setting_says_how_many_threads_compute_unless_a_number_is_given(tmp_path, monkeypatch):
    threads = 1 if usable_cpus() > 1 else 2  # not the default
    monkeypatch.setenv("CAPSNET_THREADS", str(threads))
    write_bundle(tmp_path / "tiny" / "1")
    query = Query("tiny", None, None, "auto", poses=False)
    assert load_local(str(tmp_path), query, batch=1).engine.parallel_batches == threads
    assert load_local(str(tmp_path), query, batch=1, threads=3).engine.parallel_batches == 3
