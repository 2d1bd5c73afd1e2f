"""Presets: named configurations that come with the package."""

import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from training.config.run import RunConfig, from_dict
from training.config.without_effect import settings_without_effect

OF_OPTIONS = {  # what a preset cannot know, and the option that sets it
    "started_from": "--start-from",
    "data.folder": "--images",
    "data.folder_digest": "--images",
    "data.class_names": "--images",
}


def presets() -> list[str]:
    """Names of the presets that come with the package."""
    folder = files("training") / "presets"
    return sorted(
        entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def load_preset(name: str) -> RunConfig:
    """Read a preset by name, or from a file of one's own, `folder/mine.toml`, whose name is `mine`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: there is no preset of that name, or a value in it is wrong.
    """
    if name.endswith(".toml"):
        if (stem := Path(name).stem) in presets():
            raise ValueError(f"{name}: {stem} is a preset of the package; give the file another name")
        return _read(stem, Path(name).read_bytes())
    if name not in presets():
        near = get_close_matches(name, presets(), n=1)
        meant = f"did you mean {near[0]}? There" if near else "there"
        raise ValueError(f"no preset {name!r}; {meant} are {', '.join(presets())}, or a file NAME.toml")
    return _read(name, (files("training") / "presets" / f"{name}.toml").read_bytes())


def _read(name: str, content: bytes) -> RunConfig:
    try:
        values = tomllib.loads(content.decode("utf-8-sig"))
        config = from_dict({"preset": name, **values})
    except RecursionError:
        raise ValueError(f"preset {name}: its values are nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"preset {name}: {error}") from None
    if not values:
        raise ValueError(f"preset {name}: the file is empty")
    if config.preset != name:
        raise ValueError(f"preset {name}: its name is that of the file; leave the key preset out")
    optimizer = config.optimizer
    if optimizer.min_learning_rate > optimizer.learning_rate:
        raise ValueError(
            f"preset {name}: min_learning_rate {optimizer.min_learning_rate:g} is above learning_rate "
            f"{optimizer.learning_rate:g}"
        )
    if faults := [*_set_by_options(values), *settings_without_effect(config)]:
        raise ValueError(f"preset {name}: {'; '.join(faults)}")
    return config


def _set_by_options(values: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a preset's values that only an option may set."""
    named = {*values, *(f"data.{key}" for key in values.get("data", {}))}
    for key, option in OF_OPTIONS.items():
        if key in named:
            yield f"{key} is set by {option}; leave it out"
