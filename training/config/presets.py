"""Presets: named configurations that come with the package."""

import tomllib
from difflib import get_close_matches
from importlib.resources import files

from training.config.run import RunConfig, from_dict


def presets() -> list[str]:
    """Names of the presets that come with the package."""
    folder = files("training") / "presets"
    return sorted(
        entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def load_preset(name: str) -> RunConfig:
    """Read a preset by name.

    Raises:
        ValueError: there is no preset of that name, or a value in it is wrong.
    """
    if name not in presets():
        near = get_close_matches(name, presets(), n=1)
        meant = f"did you mean {near[0]}? There" if near else "there"
        raise ValueError(f"no preset {name!r}; {meant} are {', '.join(presets())}")
    text = (files("training") / "presets" / f"{name}.toml").read_text()
    return from_dict({"preset": name, **tomllib.loads(text)})
