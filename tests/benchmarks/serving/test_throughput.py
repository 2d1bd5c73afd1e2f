"""benchmarks.serving.throughput, as far as it needs no wrk."""

import pytest

from benchmarks.serving.throughput import _environment, _heading, _parser, _result
from tests.support.tiny_bundle import write_bundle


@pytest.mark.parametrize(
    ("given", "optimize", "said"),
    [([], "true", "graphs derived from the bundle's"), (["--plain"], "false", "the bundle's own graph")],
)
def test_the_service_runs_the_graphs_that_the_heading_names(tmp_path, monkeypatch, given, optimize, said):
    monkeypatch.setenv("CAPSNET_OPTIMIZE", "of another service")
    bundle = write_bundle(tmp_path / "tiny" / "1")
    options = _parser().parse_args(["--bundle", str(bundle), *given])
    assert _environment(options, tmp_path)["CAPSNET_OPTIMIZE"] == optimize
    assert f"tiny/1, of which the service runs {said}" in _heading(options)


def test_requests_that_were_refused_are_no_images():
    counted = {"requests": 100, "refused": 40, "errors": 2, "seconds": 2, "p50_ms": 1, "p99_ms": 3}
    assert _result(counted) == {"images_s": 30, "p50_ms": 1, "p99_ms": 3, "failed": 42}
