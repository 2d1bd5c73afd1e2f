"""Build the playground that needs no server, with `python -m browser.build`: a folder for any static host.

The page is the service's own (`service/playground`). What differs is laid over it: `page` has a module that
asks an engine in the browser (`engine`) instead of the service, and a line that says so.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from browser.graphs import WEIGHTS_FILE, RoundingError, browser_graphs
from browser.runtime import HERE, NpmError, runtime_files
from docs.build import PLAYGROUND, ROOT, SITE, faults
from export.contract.manifest import VERSION, BundleError, Manifest, newest_version, read_manifest
from export.contract.receptive_fields import capsule_grids
from service.routes.playground import FOLDER, PAGE, SOURCES

DEFAULT_MODEL = "capsnet-digits"
# Of a manifest, what neither the page nor the engine reads.
LEFT_OUT = {"samples", "training", "metrics", "parity", "source_commit"}

POLICY = "; ".join(
    f"{kind} {sources}"
    for kind, sources in (SOURCES | {"worker-src": "'self'"}).items()
    if kind != "frame-ancestors"  # which a page cannot say of itself
)
DOCUMENTATION = '<a class="quiet docs" href="../index.html">Documentation</a>'
SERVER = '<a href="../quickstart.html">the service</a>'
# In the service's page, each of them once, and what stands there instead.
REPLACED = {
    '<meta charset="utf-8">': (
        f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    ),
    '<a class="quiet docs" href="docs">API</a>': DOCUMENTATION,
    '<main id="main"': (
        '<p class="notice banner">This page computes everything in your browser: nothing leaves your '
        'machine. <span id="banner-progress" class="note"></span></p>\n<main id="main"'
    ),
    ' <a href="docs">The API\'s page</a> does, too.': "",
    '<button id="copy-curl" class="button">': (
        f'<span class="note">To ask with curl or Python, run {SERVER}.</span>\n'
        '      <button id="copy-curl" class="button" hidden>'
    ),
    '<button id="copy-python" class="button">': '<button id="copy-python" class="button" hidden>',
}
LINKS = {DOCUMENTATION: "", SERVER: "the service"}  # into the site, and what a playground alone has instead


class BuildError(RuntimeError):
    """The playground cannot be built; the message says why."""


def main() -> None:
    """Build into the documentation's site, and check its links again."""
    parser = argparse.ArgumentParser(prog="python -m browser.build", description=__doc__)
    parser.add_argument(
        "--models", type=Path, default=ROOT / "models", help="folder of bundles; newest versions"
    )
    parser.add_argument("--out", type=Path, default=PLAYGROUND, help="new folder; by default the site's own")
    options = parser.parse_args()
    try:
        build(options.models, options.out)
    except (BuildError, BundleError, NpmError, RoundingError) as error:
        sys.exit(f"browser.build: {error}")
    if _is_site_playground(options.out) and (found := sorted(faults(SITE))):
        sys.exit("\n".join(found))
    print(f"{options.out}: {_megabytes(options.out):.0f} MB")


def build(models: Path, out: Path) -> None:
    """Write the playground with the newest versions of the bundles in a folder.

    Args:
        models: holds one folder per model.
        out: a new or empty folder; or the site's own, whose content is replaced.

    Raises:
        BuildError: the bundles are refused (`bundles_in`), `out` is a file or not empty, or the service's
            page is not the one that is known here.
        BundleError: a bundle disagrees with its manifest.
        RoundingError: float16 does not hold a weight.
        NpmError: the runtime cannot be installed.
    """
    bundles = bundles_in(models)
    in_site = _is_site_playground(out)
    if not in_site and out.exists() and (out.is_file() or any(out.iterdir())):
        raise BuildError(f"{out} is not an empty folder: choose another")
    runtime = runtime_files(ROOT / "build" / "npm")
    if in_site:
        shutil.rmtree(out, ignore_errors=True)
    _write(bundles, runtime, out, in_site)


def _is_site_playground(out: Path) -> bool:
    return out.resolve() == PLAYGROUND.resolve()


def _write(bundles: list[Path], runtime: list[Path], out: Path, in_site: bool) -> None:
    """A whole playground into a new or empty folder."""
    shutil.copytree(FOLDER, out / "playground", ignore=shutil.ignore_patterns(PAGE))
    shutil.copytree(HERE / "page", out / "playground", dirs_exist_ok=True)
    shutil.copytree(HERE / "engine", out / "engine")
    (out / "engine" / "ort").mkdir()
    for file in runtime:
        shutil.copy(file, out / "engine" / "ort")
    (out / PAGE).write_text(page_of((FOLDER / PAGE).read_text(), in_site))
    write_models(bundles, out / "models")


def page_of(page: str, in_site: bool = True) -> str:
    """The service's page for hosts without the service.

    Args:
        page: the service's.
        in_site: whether the documentation is beside it, which it links to.

    Raises:
        BuildError: something that is replaced is not in it exactly once.
    """
    for old, new in REPLACED.items():
        if page.count(old) != 1:
            raise BuildError(f"{FOLDER / PAGE} has {page.count(old)} times: {old}")
        page = page.replace(old, new)
    if not in_site:
        for link, words in LINKS.items():
            page = page.replace(link, words)
    return page


def bundles_in(models: Path) -> list[Path]:
    """The newest version of each model in a folder.

    Raises:
        BuildError: there is none, one is in no folder of its version, or two are of the same model.
        BundleError: a bundle has no valid manifest.
    """
    folders = sorted(folder for folder in models.iterdir() if folder.is_dir()) if models.is_dir() else []
    if not folders:
        raise BuildError(f"{models} holds no bundle")
    bundles: dict[str, Path] = {}
    for bundle in map(newest_version, folders):
        if not VERSION.fullmatch(bundle.name):
            raise BuildError(f"{bundle} is no version of a model: expected {models}/MODEL/VERSION")
        model = read_manifest(bundle).model
        if model in bundles:
            raise BuildError(
                f"{bundle} is of {model}, as is {bundles[model]}: expected {models}/MODEL/VERSION"
            )
        bundles[model] = bundle
    return list(bundles.values())


def write_models(bundles: list[Path], out: Path) -> None:
    """Write graphs and weights of each bundle, and what the page is to know of them."""
    listed = []
    for bundle in bundles:
        manifest = read_manifest(bundle)
        folder = out / manifest.model / bundle.name
        folder.mkdir(parents=True)
        graphs, weights = browser_graphs(bundle, manifest)
        (folder / WEIGHTS_FILE).write_bytes(weights)
        for role, content in graphs.items():
            (folder / f"{role}.onnx").write_bytes(content)
        version = _version(int(bundle.name), manifest, len(weights))
        listed.append(
            {"name": manifest.model, "default": manifest.model == DEFAULT_MODEL, "versions": [version]}
        )
    (out / "models.json").write_text(json.dumps({"models": listed}))


def _version(version: int, manifest: Manifest, weights_bytes: int) -> dict[str, Any]:
    """A version as the API lists it, with what the engine does not compute itself."""
    entry = {
        "version": version,
        "state": "loaded",
        "default": True,
        "manifest": manifest.model_dump(mode="json", exclude=LEFT_OUT),
        "weights_bytes": weights_bytes,
    }
    if "explain" in manifest.graphs:
        entry["grids"] = [
            {"name": name, "row_centers": grid.centers, "column_centers": grid.centers, "field": grid.field}
            for name, grid in capsule_grids(manifest).items()
        ]
    return entry


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


if __name__ == "__main__":
    main()
