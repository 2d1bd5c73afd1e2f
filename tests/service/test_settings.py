"""Settings: from the environment, with errors that name the variable."""

import os
import re
from pathlib import Path

import pytest
from PIL import Image

from docs.generate import settings_table
from service.http.keys import Keys
from service.serve import EXAMPLES
from service.settings import MAX_PIXELS, Settings, SettingsError, check_key_variable, read_settings
from tests.support.paths import ROOT


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("CAPSNET_"):
            monkeypatch.delenv(name)


def test_every_setting_has_a_default():
    settings = read_settings()
    assert (settings.port, settings.device, settings.default_model) == (8000, "auto", "capsnet-digits")
    assert (settings.max_body_bytes, settings.max_pixels) == (32 * 2**20, 50_000_000)
    assert settings.roots == (Path("models"),)


def test_the_environment_sets_them(monkeypatch):
    monkeypatch.setenv("CAPSNET_PORT", "9000")
    monkeypatch.setenv("CAPSNET_MODELS", os.pathsep.join(["models", "/srv/models"]))
    settings = read_settings()
    assert settings.port == 9000
    assert settings.roots == (Path("models"), Path("/srv/models"))


def test_an_option_goes_before_the_environment(monkeypatch):
    monkeypatch.setenv("CAPSNET_PORT", "9000")
    assert read_settings(port="9001", host=None).port == 9001


def test_the_variables_of_other_parts_do_not_upset_the_service(monkeypatch):
    monkeypatch.setenv("CAPSNET_DATA", "/data")
    read_settings()


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("CAPSNET_PROT", "CAPSNET_PORT"),
        ("CAPSNET_MAX_PIXEL", "CAPSNET_MAX_PIXELS"),
        ("CAPSNET_MAXPIXELS", "CAPSNET_MAX_PIXELS"),
        ("CAPSNET_MODEL", "CAPSNET_MODELS"),
        ("CAPSNET_APIKEYS", "CAPSNET_API_KEYS"),
        ("capsnet_devise", "CAPSNET_DEVICE"),
        ("CAPSNET_DAAT", "CAPSNET_DATA"),
    ],
)
def test_a_misspelt_variable_is_told_the_nearest_one(monkeypatch, misspelt, meant):
    monkeypatch.setenv(misspelt, "secret")
    with pytest.raises(SettingsError) as caught:
        read_settings()
    assert str(caught.value) == f"there is no {misspelt}; did you mean {meant}?"


@pytest.mark.parametrize("name", ["CAPSNET_URL", "CAPSNET_XYZZY", "CAPSNET_"])
def test_a_variable_that_is_near_to_none_is_told_where_the_list_is(monkeypatch, name):
    monkeypatch.setenv(name, "http://localhost:8000")
    with pytest.raises(SettingsError) as caught:
        read_settings()
    assert str(caught.value) == f"there is no {name}; capsnet-serve --help lists the settings"


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("CAPSNET_DEADLINE_MS", 86_400_000),
        ("CAPSNET_RECEIVE_MS", 86_400_000),
        ("CAPSNET_QUEUE_IMAGES", 1_000_000),
        ("CAPSNET_VERSIONS_KEPT", 1_000_000),
    ],
)
def test_numbers_that_the_system_cannot_wait_for_or_clients_cannot_hold_are_refused(monkeypatch, name, most):
    monkeypatch.setenv(name, str(most))
    read_settings()
    monkeypatch.setenv(name, str(most + 1))
    with pytest.raises(SettingsError, match=f"{name}.*{most}"):
        read_settings()


def test_a_body_may_be_as_large_as_grpc_can_count_only_where_there_is_grpc(monkeypatch):
    monkeypatch.setenv("CAPSNET_MAX_BODY_BYTES", str(2**31))
    monkeypatch.setenv("CAPSNET_UPLOADS_BYTES", str(2**32))
    read_settings()
    monkeypatch.setenv("CAPSNET_GRPC_PORT", "0")
    with pytest.raises(SettingsError, match="CAPSNET_MAX_BODY_BYTES is at most 2147483647"):
        read_settings()


def test_help_lists_every_setting():
    assert {name.upper() for name in Settings.model_fields} <= set(EXAMPLES.split())


def test_what_kubernetes_sets_for_a_service_of_our_name_does_not_upset_it(monkeypatch):
    for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT_8000_TCP", "PORT_8000_TCP_ADDR"):
        monkeypatch.setenv(f"CAPSNET_{name}", "10.0.0.1")
        monkeypatch.setenv(f"CAPSNET_BLUE_{name}", "10.0.0.1")
    monkeypatch.setenv("CAPSNET_BLUE_PORT", "tcp://10.0.0.1:8000")
    read_settings()


@pytest.mark.parametrize("value", ["tcp://10.0.0.1:80", "tcp://[fd00::1]:80", "udp://10.0.0.1:80"])
@pytest.mark.parametrize("name", ["CAPSNET_PORT", "capsnet_port"])
def test_the_address_that_kubernetes_puts_into_our_port_is_ignored(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert read_settings().port == 8000
    assert read_settings(port="9001").port == 9001
    with pytest.raises(SettingsError, match="CAPSNET_PORT"):  # of an option, nobody but the user can be meant
        read_settings(port=value)


def test_every_variable_that_the_repository_reads_is_known(monkeypatch):
    root = ROOT
    files = [
        root / "docker-compose.yml",
        root / "Makefile",
        root / "README.md",
        *(root / "docs").rglob("*.md"),
    ]
    for folder, kinds in (("docker", "*"), ("training", "*.py"), ("export", "*.py"), ("service", "*.py")):
        files += [file for file in (root / folder).rglob(kinds) if file.is_file()]
    constants = {"CAPSNET_ON_SMALLNORB"}
    for file in files:
        for name in set(re.findall(r"CAPSNET_[A-Z_]*[A-Z]", file.read_text(errors="replace"))) - constants:
            monkeypatch.setenv(name, "")
    with pytest.raises(SettingsError) as caught:  # an empty value is no port
        read_settings()
    assert "there is no" not in str(caught.value)


def test_pillows_own_limit_lies_above_every_limit_that_can_be_set():
    read_settings(max_pixels=MAX_PIXELS)
    assert 2 * Image.MAX_IMAGE_PIXELS >= MAX_PIXELS  # at twice this Pillow refuses instead of warning


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CAPSNET_PORT", "eighty"),
        ("CAPSNET_PORT", "70000"),
        ("CAPSNET_DEVICE", "gpu"),
        ("CAPSNET_MAX_BATCH", "-1"),
        ("CAPSNET_RESCAN_S", "nan"),
        ("CAPSNET_VERSIONS_KEPT", ""),
        ("CAPSNET_MODELS", ""),
        ("CAPSNET_MODELS", "~nobody-of-this-name/models"),
        ("CAPSNET_CACHE", "~nobody-of-this-name/cache"),
        ("CAPSNET_API_KEYS_FILE", "~nobody-of-this-name/keys"),
        ("CAPSNET_ADMIN_KEY_FILE", "~nobody-of-this-name/key"),
        ("CAPSNET_MAX_PIXELS", "180000000"),
        ("CAPSNET_LOG_LEVEL", "loud"),
        ("CAPSNET_LOG_FORMAT", "xml"),
        ("CAPSNET_THREADS", "-1"),
        ("CAPSNET_CORS_ORIGINS", "example.com"),
        ("CAPSNET_CORS_ORIGINS", "https://example.com/"),
        ("CAPSNET_CORS_ORIGINS", "https://Example.com"),
        ("CAPSNET_CORS_ORIGINS", "https://one.example,,https://two.example"),
    ],
)
def test_a_value_that_cannot_be_used_is_one_line_that_names_the_variable(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        read_settings()
    assert f"{name}={value!r}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_request_that_could_never_fit_the_queue_is_a_wrong_setting(monkeypatch):
    monkeypatch.setenv("CAPSNET_QUEUE_IMAGES", "10")
    with pytest.raises(SettingsError, match="CAPSNET_QUEUE_IMAGES"):
        read_settings()


def test_a_picture_that_no_request_could_bring_is_a_wrong_setting(monkeypatch):
    monkeypatch.setenv("CAPSNET_MAX_REQUEST_PIXELS", "1000")
    with pytest.raises(SettingsError, match=r"CAPSNET_MAX_REQUEST_PIXELS.*CAPSNET_MAX_PIXELS"):
        read_settings()


def test_without_keys_and_origins_none_are_accepted():
    settings = read_settings()
    assert (settings.api_keys, settings.admin_key, settings.origins) == (None, None, ())
    assert not Keys(settings).are_needed


def test_several_keys_are_accepted_at_once_and_the_admin_key_with_them(monkeypatch):
    monkeypatch.setenv("CAPSNET_API_KEYS", "old-key, new-key")
    monkeypatch.setenv("CAPSNET_ADMIN_KEY", "admin-key")
    keys = Keys(read_settings())
    assert all(keys.find([(b"x-api-key", key)]) for key in (b"old-key", b"new-key", b"admin-key"))


def test_an_admin_key_alone_makes_nobody_else_need_one(monkeypatch):
    monkeypatch.setenv("CAPSNET_ADMIN_KEY", "admin-key")
    assert not Keys(read_settings()).are_needed


@pytest.mark.parametrize("name", ["CAPSNET_API_KEY", "capsnet_api_key"])
def test_a_key_in_the_variable_of_clients_does_not_leave_the_service_open(monkeypatch, name):
    monkeypatch.setenv(name, "first-secret")
    with pytest.raises(SettingsError, match=r"CAPSNET_API_KEYS.*env -u CAPSNET_API_KEY") as caught:
        check_key_variable(read_settings())
    assert "first-secret" not in str(caught.value)
    monkeypatch.setenv("CAPSNET_API_KEYS", "second-secret")
    check_key_variable(read_settings())


def test_keys_are_not_shown(monkeypatch):
    monkeypatch.setenv("CAPSNET_API_KEYS", "first-key,second-key")
    monkeypatch.setenv("CAPSNET_ADMIN_KEY", "admin-key")
    settings = read_settings()
    for shown in (repr(settings), str(settings), str(settings.model_dump())):
        assert "-key" not in shown


@pytest.mark.parametrize("name", ["CAPSNET_API_KEYS", "CAPSNET_ADMIN_KEY"])
@pytest.mark.parametrize("value", ["", ",", "good-key,", "two words", "kéy", "line\nbreak", "tab\there"])
def test_a_key_that_no_header_can_carry_is_one_line_that_does_not_show_it(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        read_settings()
    assert str(caught.value).startswith(f"{name}=(not shown): ")
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("admin_key", ["one,two", "first-key"])
def test_an_admin_key_is_one_key_that_no_client_has(monkeypatch, admin_key):
    monkeypatch.setenv("CAPSNET_API_KEYS", "first-key,second-key")
    monkeypatch.setenv("CAPSNET_ADMIN_KEY", admin_key)
    with pytest.raises(SettingsError, match="CAPSNET_ADMIN_KEY") as caught:
        read_settings()
    assert admin_key not in str(caught.value)


@pytest.mark.parametrize("name", ["CAPSNET_CACHE", "CAPSNET_API_KEYS_FILE", "CAPSNET_ADMIN_KEY_FILE"])
def test_a_path_that_is_empty_is_not_taken_for_the_folder_of_the_start(monkeypatch, name):
    monkeypatch.setenv(name, "")
    with pytest.raises(SettingsError, match=f"^{name}='': it is empty"):
        read_settings()


def test_a_user_without_a_home_folder_is_told_so(monkeypatch):
    def homeless(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    monkeypatch.setenv("CAPSNET_CACHE", "~/capsnet")
    monkeypatch.setenv("CAPSNET_MODELS", "/models")
    with pytest.raises(SettingsError, match=r"CAPSNET_CACHE.*this user has none: set HOME, or another path"):
        read_settings()


def test_a_wrong_setting_elsewhere_shows_no_key(monkeypatch):
    monkeypatch.setenv("CAPSNET_API_KEYS", "first-key")
    monkeypatch.setenv("CAPSNET_QUEUE_IMAGES", "10")
    with pytest.raises(SettingsError) as caught:
        read_settings()
    assert "first-key" not in str(caught.value)


def test_origins_are_parted_by_commas(monkeypatch):
    monkeypatch.setenv("CAPSNET_CORS_ORIGINS", "https://one.example, http://localhost:8080")
    assert read_settings().origins == ("https://one.example", "http://localhost:8080")


def test_the_documentation_lists_every_setting_with_its_default_and_meaning():
    listed = settings_table()
    assert listed in (ROOT / "docs" / "serving" / "settings.md").read_text()
    for name, field in Settings.model_fields.items():
        default = str(field.default).lower() if isinstance(field.default, bool) else field.default
        told = "(unset)" if default in (None, "") else f"`{default}`"
        assert re.search(rf"^\| `CAPSNET_{name.upper()}` \| {re.escape(told)} \| \S", listed, re.MULTILINE)
