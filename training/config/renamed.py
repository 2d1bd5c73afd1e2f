"""Names that earlier versions gave to keys and values of configurations, in files that users still have."""

from typing import Any

KEYS = {
    "optimiser": "optimizer",
    "weight_average": "ema_decay",
    "standardise": "standardize_per_image",
    "official_initialisation": "official_initialization",
    "class_temperature_share": "class_temperature_fraction",
    "blank_share": "blank_fraction",
}
VALUES = {"light": {"standardised": "standardized"}}


def with_current_names(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration, or a section of one, with each earlier name replaced by today's.

    Args:
        values: nested dictionaries as in config.json, a preset or a bundle's manifest; not changed.

    Raises:
        ValueError: a key is given under both names.
    """
    return _renamed(values, KEYS, VALUES)


def with_original_names(values: dict[str, Any]) -> dict[str, Any]:
    """The inverse: the names that a configuration had first, so that a digest of it stays the same."""
    keys = {new: old for old, new in KEYS.items()}
    values_ = {key: {new: old for old, new in names.items()} for key, names in VALUES.items()}
    return _renamed(values, keys, values_)


def _renamed(
    values: dict[str, Any], keys: dict[str, str], of_values: dict[str, dict[str, str]]
) -> dict[str, Any]:
    """Nested dictionaries under other names; what a run was started from stays as it was recorded."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = keys.get(key, key)
        if name in found:
            raise ValueError(f"configuration: {name} is given twice, once under an earlier name")
        if isinstance(value, dict) and name != "started_from":
            found[name] = _renamed(value, keys, of_values)
        elif isinstance(value, str):
            found[name] = of_values.get(name, {}).get(value, value)
        else:
            found[name] = value
    return found
