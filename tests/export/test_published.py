"""Nothing is written into a published version."""

import pytest

from export.contract.manifest import BundleError
from export.published import refuse_in_published
from tests.support.tiny_bundle import write_bundle


@pytest.fixture
def models(tmp_path):
    return write_bundle(tmp_path / "models" / "tiny" / "1").parents[1]


@pytest.mark.parametrize("out", ["tiny/1", "tiny/1/triton", "tiny/1/a/b", "tiny/../tiny/1/triton"])
def test_a_folder_in_a_published_version_is_refused(models, out):
    with pytest.raises(BundleError, match=r"--out .* is in a published version, which must not change"):
        refuse_in_published(models / out)


def test_a_link_into_a_published_version_is_refused(models):
    (models / "out").symlink_to("tiny/1")
    with pytest.raises(BundleError, match="is in a published version"):
        refuse_in_published(models / "out" / "triton")


@pytest.mark.parametrize("out", ["tiny", "tiny/2", "tiny/triton", "triton"])
def test_folders_beside_versions_will_do(models, out):
    (models / "manifest.json").touch()  # of a web app, say
    refuse_in_published(models / out)
