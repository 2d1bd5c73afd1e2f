"""benchmarks.serving.one_version with the service itself."""

from benchmarks.serving.one_version import models_with_only
from tests.support.live_process import live_process
from tests.support.tiny_bundle import write_bundle


def test_the_service_runs_the_version_that_is_named_not_the_newest(tmp_path):
    older, _ = (write_bundle(tmp_path / "all" / "tiny" / version, seed=int(version)) for version in "12")
    models = models_with_only(older, tmp_path)
    with live_process(models, tmp_path / "log") as service:
        versions = service.client.get("/models/tiny").json()["versions"]
        assert [one["version"] for one in versions] == [1]
