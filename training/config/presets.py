"""Presets: named configurations that come with the package."""

import tomllib
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from training.config.run import RunConfig, from_dict


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
        return _read(Path(name).stem, Path(name).read_text())
    if name not in presets():
        near = get_close_matches(name, presets(), n=1)
        meant = f"did you mean {near[0]}? There" if near else "there"
        raise ValueError(f"no preset {name!r}; {meant} are {', '.join(presets())}, or a file NAME.toml")
    return _read(name, (files("training") / "presets" / f"{name}.toml").read_text())


def _read(name: str, text: str) -> RunConfig:
    try:
        config = from_dict({"preset": name, **tomllib.loads(text)})
    except ValueError as error:
        raise ValueError(f"preset {name}: {error}") from None
    if config.preset != name:
        raise ValueError(f"preset {name}: its name is that of the file; leave the key preset out")
    return config
