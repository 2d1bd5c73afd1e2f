"""The folder of the site: the service's page, what is laid over it, and where its parts come from."""

import json
import re
from pathlib import Path

import pytest

from browser.build import REPLACED, BuildError, build, bundles_in, page_of
from browser.graphs import WEIGHTS_FILE
from browser.runtime import HERE, NpmError, runtime_files
from docs.build import faults
from service.routes.playground import FOLDER, PAGE
from tests.support.paths import MODELS
from tests.support.tiny_bundle import write_bundle


def test_the_page_is_the_services_but_for_what_is_laid_over_it(site_folder):
    own = {path.relative_to(HERE / "page") for path in (HERE / "page").rglob("*") if path.is_file()}
    assert own == {Path("scripts/api.js"), Path("scripts/banner.js")}
    for path in FOLDER.rglob("*"):
        name = path.relative_to(FOLDER)
        if path.is_file() and name != Path(PAGE) and name not in own:
            assert (site_folder / "playground" / name).read_bytes() == path.read_bytes()


def test_the_module_in_place_of_the_api_has_its_functions():
    functions = re.compile(r"^export (?:async function|function|const) (\w+)", re.MULTILINE)
    here, there = (
        set(functions.findall((folder / "scripts/api.js").read_text())) for folder in (HERE / "page", FOLDER)
    )
    assert here == there


def test_the_page_may_load_nothing_from_elsewhere(site_folder):
    page = (site_folder / PAGE).read_text()
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_every_file_that_the_page_names_is_there(site_folder):
    assert not [*faults(site_folder)]
    for script in site_folder.rglob("*.js"):
        for imported in re.findall(r'from "([^"]+)"', script.read_text()):
            assert (script.parent / imported).is_file(), f"{script.name} imports {imported}"


def test_within_the_site_the_page_links_to_its_pages_and_alone_to_none():
    page = (FOLDER / PAGE).read_text()
    for link in ('href="../index.html"', 'href="../quickstart.html"'):
        assert link in page_of(page)
        assert link not in page_of(page, in_site=False)
    assert "run the service." in page_of(page, in_site=False)


def test_a_page_that_has_changed_is_not_built_in_silence():
    page = (FOLDER / PAGE).read_text()
    for replaced in REPLACED:
        with pytest.raises(BuildError, match="has 0 times"):
            page_of(page.replace(replaced, ""))


def test_weights_take_half_of_what_the_bundles_take_and_are_there_once(site_folder):
    listed = json.loads((site_folder / "models" / "models.json").read_text())["models"]
    assert [model["name"] for model in listed if model["default"]] == ["capsnet-digits"]
    for model in listed:
        [version] = model["versions"]
        bundle = MODELS / model["name"] / str(version["version"])
        weights = site_folder / "models" / model["name"] / str(version["version"]) / WEIGHTS_FILE
        assert weights.stat().st_size == version["weights_bytes"]
        encoder_and_decoder = sum((bundle / f"{role}.onnx").stat().st_size for role in ("encoder", "decoder"))
        assert weights.stat().st_size < 0.51 * encoder_and_decoder


def test_a_folder_without_bundles_is_refused(tmp_path):
    for models in (tmp_path / "missing", tmp_path):
        with pytest.raises(BuildError, match="holds no bundle"):
            build(models, tmp_path / "out")


def test_the_newest_version_of_each_model_is_taken(tmp_path):
    for name in ("one/1", "one/2", "two/7"):
        write_bundle(tmp_path / name)
    assert bundles_in(tmp_path) == [tmp_path / "one" / "2", tmp_path / "two" / "7"]


def test_a_bundle_without_a_folder_of_its_version_is_refused(tmp_path):
    write_bundle(tmp_path / "tiny" / "1").rename(tmp_path / "other")
    with pytest.raises(BuildError, match=r"other is no version of a model: expected .*/MODEL/VERSION"):
        bundles_in(tmp_path)


def test_the_versions_in_the_folder_of_one_model_are_no_models(tmp_path):
    for version in ("1", "2"):
        write_bundle(tmp_path / "tiny" / version)
    with pytest.raises(BuildError, match=r"tiny/2 is of tiny, as is .*tiny/1"):
        bundles_in(tmp_path / "tiny")


@pytest.mark.parametrize("name", ["", "letter.txt"])
def test_a_file_or_a_folder_with_something_else_is_not_touched(tmp_path, name):
    letter = tmp_path / "letter.txt"
    letter.write_text("mine")
    with pytest.raises(BuildError, match="is not an empty folder: choose another"):
        build(MODELS, tmp_path / name)
    assert letter.read_text() == "mine"


@pytest.mark.parametrize("relative", [False, True])
def test_in_the_site_whatever_was_there_is_replaced(tmp_path, monkeypatch, relative):
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setattr("browser.build.PLAYGROUND", tmp_path)
    monkeypatch.setattr("browser.build.runtime_files", lambda folder: [])
    monkeypatch.setattr("browser.build.write_models", lambda bundles, folder: None)
    (tmp_path / PAGE).write_text("no playground")
    (tmp_path / "engine").mkdir()
    build(MODELS, Path(tmp_path.name) if relative else tmp_path)
    assert "../index.html" in (tmp_path / PAGE).read_text()


def test_without_npm_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NpmError, match=r"there is no npm.*install Node.js"):
        runtime_files(tmp_path / "npm")


def test_what_npm_says_is_passed_on(tmp_path, monkeypatch):
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho the registry is away >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(NpmError, match="the registry is away"):
        runtime_files(tmp_path / "packages")


def test_the_lock_pins_every_package_by_its_hash_and_names_no_registry_but_the_public_one():
    lock = json.loads((HERE / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert packages["node_modules/onnxruntime-web"]["version"] == "1.30.0"
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    resolved = {package.get("resolved", "https://registry.npmjs.org/") for package in packages.values()}
    assert all(url.startswith("https://registry.npmjs.org/") for url in resolved)
