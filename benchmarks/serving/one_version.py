"""A folder of models for a service that is to run one version of one model, which need not be the newest."""

from pathlib import Path


def models_with_only(bundle: Path, folder: Path) -> Path:
    """Make the folder `models` in `folder`, with a link to the bundle at its model's name and version."""
    models = folder / "models"
    link = models / bundle.parent.name / bundle.name
    link.parent.mkdir(parents=True)
    link.symlink_to(bundle.resolve(), target_is_directory=True)
    return models
