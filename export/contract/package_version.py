"""The version of this package, also where its files were only copied."""

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """As `pip` knows it; "unknown" where it is not installed."""
    try:
        return version("capsnet")
    except PackageNotFoundError:
        return "unknown"
