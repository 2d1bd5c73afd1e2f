"""The environment as `Settings`: every deployment fact, its unit and its default."""

import os
import re
from difflib import get_close_matches
from importlib.util import find_spec
from ipaddress import ip_network
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from export.contract.processors import usable_cpus

PREFIX = "CAPSNET_"
MAX_PIXELS = 178_000_000  # Pillow refuses pictures of more than 178,956,970 itself
MAX_WORKERS = 64
DAY_MS = 24 * 3600 * 1000  # nobody waits longer; the system's own waits end at 2**31 ms
MAX_GRPC_BODY_BYTES = 2**31 - 1  # gRPC keeps it in a signed number of 32 bits
MANY = 1_000_000  # Triton's clients hold the model's configuration in numbers of 32 bits
PORTS = ("port", "grpc_port", "metrics_port")
WORKERS = re.compile(r"[1-9][0-9]?")
SECRETS = frozenset({"api_keys", "admin_key"})
TRUSTED = "127.0.0.1"
# What a header can hold: printable ASCII without blanks; commas separate keys.
KEY = re.compile(r"[!-+\--~]+")
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s,A-Z]+")
# Variables with our prefix that other programs read: clients, training, Docker Compose.
OTHERS = frozenset(
    {
        "API_KEY",
        "COMMIT",
        "DATA",
        "GPU_MEMORY",
        "GPU_PORT",
        "GRAFANA_PORT",
        "MEMORY",
        "MODEL_NAME",
        "PRESET",
        "PROMETHEUS_PORT",
        "TENSORRT_PORT",
        "TRAINING_MEMORY",
    }
)
# Variables that Kubernetes and Docker set for a service called capsnet or capsnet-something: their names, and
# the values of those that end with PORT.
LINK = re.compile(r"(.+_)?(SERVICE_(HOST|PORT)(_.+)?|PORT_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)")
LINKED = re.compile(r"(tcp|udp|sctp)://\S+:\d+")
Device = Literal["auto", "cpu", "cuda", "tensorrt"]
Precision = Literal["float32", "half"]
KEY_LIMITS = {  # least and most
    "rate": (0.001, 1_000_000, "requests per second"),
    "concurrency": (1, 1_000_000, "requests at once"),
}


class SettingsError(ValueError):
    """A setting has an invalid value or an unknown name; one line that names the variable."""


class Settings(BaseSettings):
    """Deployment facts, each from the environment variable `CAPSNET_<NAME>`.

    Attributes:
        host: address to listen on; 0.0.0.0 for every interface.
        port: TCP port; 0 takes a free one.
        grpc_port: TCP port of the Open Inference Protocol over gRPC, on the same address; 0 takes a free one.
            Without it there is no gRPC. Needs the extra `grpc`.
        metrics_port: TCP port for `/metrics`, on the same address; 0 takes a free one. It answers the probes,
            too, and nothing else. Without it, `/metrics` is on `port`.
        models: folders that hold `<model>/<version>/`, separated as in PATH. Versions of a model found in
            several are merged; where two hold the same version, the earlier folder's is taken.
        default_model: the model of requests that name none, if there is such a model.
        versions_kept: how many of the newest versions of each model are served.
        cache: folder for what is derived at load time: faster graphs for CPUs (160 MB for the paper's
            network) and TensorRT engines.
        device: where graphs run. `auto` is CUDA if available, else the CPU; never TensorRT, whose first
            start takes minutes. Startup fails if an explicit device is not available.
        precision: `half` lets a GPU compute convolutions and votes in float16, checked against the bundle's
            samples. It is faster there and changes probabilities by less than 0.005. Not available on CPUs.
            Matrix capsules need float32: with `half`, they are refused.
        optimize: on a CPU, derive faster graphs from a bundle's encoder when it is first loaded, check them
            against it and keep them in the cache, from which their weights are mapped into memory.
        max_batch: maximum images per run; 0 is 32 on a CPU, where more are hardly faster, 512 with CUDA and
            64 with TensorRT. For an encoder of matrix capsules, whose votes take much memory, it is 2 on a
            CPU, where more are hardly faster, if at all, and 64 on a GPU.
        queue_images: maximum images that wait for a batch, per version, and maximum pictures that are
            being decoded or wait for it; beyond that, requests get 503. At least as many as one request may
            have.
        deadline_ms: how long a request may take, once its body has arrived, before it gets 504, in
            milliseconds; at most a day.
        max_body_bytes: largest request body, in bytes; at most three quarters of `uploads_bytes`, with
            `grpc_port` less than 2 GiB.
        uploads_bytes: largest sum of the bodies of all current requests, in bytes; beyond that, requests
            get 503. Bodies of more than 1 MiB leave a quarter of it to smaller ones.
        receive_ms: how long a body may take to arrive after the request's headers before it gets 408 and
            its connection is closed, in milliseconds; at most a day.
        max_pixels: largest picture, in pixels, checked before it is decoded; at most 178 million.
        max_request_pixels: maximum pixels of all pictures of one request; no less than `max_pixels`.
        max_images_per_request: maximum images in one request.
        max_reconstructions: maximum pictures that one sweep, one request to /segment, or the PNG of
            /explain may have.
        threads: threads that one run of a model uses on the CPU; 0 is one for every usable CPU.
        decode_threads: threads that decode and encode pictures.
        workers: number of worker processes on one port. Above 1, one more process runs the models for all
            workers, and they divide decoding threads, waiting pictures and upload memory among themselves.
            `auto`: a third of the cores with the device `cpu` or `auto`; with `cuda` or `tensorrt` all cores
            but two, at most 16.
        rescan_s: seconds between scans for newly published bundles; 0 never scans again.
        api_keys: comma-separated API keys; each request must send one. Without any, requests need none. With
            two keys at once, clients can change from the old one to the new one.
        admin_key: the key for administration, such as loading and unloading models; it is also an API key.
            Without it there is no administration.
        api_keys_file: a file of API keys, one on each line, NAME:KEY, in place of `api_keys`. The log has the
            names. `rate=` and `concurrency=` after a key are its own limits. SIGHUP rereads the file.
        admin_key_file: a file with the admin key, in place of `admin_key`; SIGHUP rereads it.
        key_rate: how many requests per second each key may send, about a second's worth of them at once,
            before it gets 429: 0.001 to 1000000, or 0 for any number. The admin key has no limits.
        key_concurrency: how many requests of each key may be in flight before it gets 429: 1 to 1000000,
            or 0 for any number.
        trusted_proxies: comma-separated addresses and networks of proxies, from whose `X-Forwarded-For` the
            log takes the client's address; * for all; empty for none.
        cors_origins: comma-separated origins whose pages may send requests from a browser; * for all.
        tracing: send a trace of every request to a collector of OpenTelemetry; its own variables
            (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`) say where and of how many. Needs the extra
            `otel`.
        log_format: `json` for one object a line, `text` for people; `auto` is text on a terminal, else JSON.
        log_level: minimum level that is logged; answers are `info`, those of 500 and more `warning`, to
            probes always `debug`.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8000, ge=0, le=65535)
    grpc_port: int | None = Field(default=None, ge=0, le=65535)
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    models: str = Field(default="models", min_length=1)
    default_model: str = "capsnet-digits"
    versions_kept: int = Field(default=2, ge=1, le=MANY)
    cache: Path = Path("~/.cache/capsnet")
    device: Device = "auto"
    precision: Precision = "float32"
    optimize: bool = True
    max_batch: int = Field(default=0, ge=0, le=4096)
    queue_images: int = Field(default=1024, ge=1, le=MANY)
    deadline_ms: int = Field(default=30_000, ge=1, le=DAY_MS)
    max_body_bytes: int = Field(default=32 * 2**20, ge=1024)
    uploads_bytes: int = Field(default=256 * 2**20, ge=1024)
    receive_ms: int = Field(default=60_000, ge=1, le=DAY_MS)
    max_pixels: int = Field(default=50_000_000, ge=1, le=MAX_PIXELS)
    max_request_pixels: int = Field(default=250_000_000, ge=1)
    max_images_per_request: int = Field(default=256, ge=1)
    max_reconstructions: int = Field(default=512, ge=1)
    threads: int = Field(default=0, ge=0, le=1024)
    decode_threads: int = Field(default=2, ge=1, le=64)
    workers: int | Literal["auto"] = 1
    rescan_s: float = Field(default=2.0, ge=0, allow_inf_nan=False)
    api_keys: SecretStr | None = None
    admin_key: SecretStr | None = None
    api_keys_file: Path | None = None
    admin_key_file: Path | None = None
    key_rate: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    key_concurrency: int = Field(default=0, ge=0)
    trusted_proxies: str = TRUSTED
    cors_origins: str = ""
    tracing: bool = False
    log_format: Literal["auto", "json", "text"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def worker_count(self) -> int:
        """How many processes serve; 1: this one, with the models."""
        if self.workers != "auto":
            return self.workers
        if self.device in {"cuda", "tensorrt"}:
            return max(min(usable_cpus() - 2, 16), 1)
        return max(usable_cpus() // 3, 1)

    @property
    def decode_queue_share(self) -> int:
        """Maximum images that wait for decoding in one worker: its share, but what one request may need.

        `queue_images` itself is not shared out: it is also how many images a request may have.
        """
        return max(self.queue_images // self.worker_count, self.max_images_per_request)

    @property
    def grpc_address(self) -> str:
        """Host and port of gRPC, as its clients take them."""
        return f"[{self.host}]:{self.grpc_port}" if ":" in self.host else f"{self.host}:{self.grpc_port}"

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folders of `models`, in order of precedence."""
        return tuple(Path(part).expanduser() for part in self.models.split(os.pathsep) if part)

    @property
    def has_administration(self) -> bool:
        """Whether there is an admin key."""
        return bool(self.admin_key or self.admin_key_file)

    @property
    def key_files(self) -> tuple[Path, ...]:
        """The files that keys come from."""
        return tuple(file for file in (self.api_keys_file, self.admin_key_file) if file)

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins of `cors_origins`."""
        return tuple(part.strip() for part in self.cors_origins.split(",") if part.strip())

    @field_validator("workers", mode="before")
    @classmethod
    def _workers_are_a_number_or_auto(cls, given: object) -> object:
        text = str(given)
        if text == "auto" or (WORKERS.fullmatch(text) and int(text) <= MAX_WORKERS):
            return text if text == "auto" else int(text)
        raise ValueError(f"expected 1 to {MAX_WORKERS}, or auto")

    @field_validator("api_keys", "admin_key")
    @classmethod
    def _keys_fit_a_header(cls, given: SecretStr | None) -> SecretStr | None:
        if given is not None and not all(KEY.fullmatch(key) for key in _keys(given)):
            raise ValueError("a key is printable ASCII without blanks; unset the variable to have none")
        return given

    @field_validator("cors_origins")
    @classmethod
    def _origins_are_as_browsers_send_them(cls, origins: str) -> str:
        for origin in origins.split(",") if origins else []:
            if not ORIGIN.fullmatch(origin.strip()):
                raise ValueError("an origin is * or like https://example.com: in lower case, without a path")
        return origins

    @model_validator(mode="after")
    def _the_admin_key_is_one_of_its_own(self) -> Self:
        if self.admin_key:
            admin = _keys(self.admin_key)
            if len(admin) > 1:
                raise ValueError("CAPSNET_ADMIN_KEY is a single key without a comma")
            if self.api_keys and admin[0] in _keys(self.api_keys):
                raise ValueError(
                    "CAPSNET_ADMIN_KEY is also one of CAPSNET_API_KEYS, which clients have: use another key"
                )
        return self

    @model_validator(mode="after")
    def _keys_come_from_one_place(self) -> Self:
        for name in ("api_keys", "admin_key"):
            if getattr(self, name) is not None and getattr(self, f"{name}_file") is not None:
                variable = f"CAPSNET_{name.upper()}"
                raise ValueError(f"{variable} and {variable}_FILE are both set: set one of them")
        return self

    @model_validator(mode="after")
    def _grpc_can_take_such_a_body(self) -> Self:
        if self.grpc_port is not None and self.max_body_bytes > MAX_GRPC_BODY_BYTES:
            limit = f"CAPSNET_MAX_BODY_BYTES is at most {MAX_GRPC_BODY_BYTES}"
            raise ValueError(f"with CAPSNET_GRPC_PORT, {limit}")
        return self

    @field_validator("key_rate", "key_concurrency")
    @classmethod
    def _limits_make_sense(cls, given: float, info: ValidationInfo) -> float:
        check_key_limit(str(info.field_name).removeprefix("key_"), given)
        return given

    @field_validator("trusted_proxies")
    @classmethod
    def _proxies_have_addresses(cls, proxies: str) -> str:
        named = [proxy.strip() for proxy in proxies.split(",")] if proxies else []
        for proxy in named:
            try:
                if proxy != "*":
                    ip_network(proxy)
            except ValueError:
                raise ValueError(f"{proxy!r} is no address, such as 10.0.0.1 or 10.0.0.0/8") from None
        return "*" if "*" in named else proxies  # Uvicorn knows * only where it stands alone

    @field_validator("cache", "api_keys_file", "admin_key_file", mode="before")
    @classmethod
    def _paths_are_given(cls, path: object) -> object:
        if path == "":  # to Path it is the folder where the service is started
            raise ValueError("it is empty; unset the variable, or name a path")
        return path

    @field_validator("models", "cache", "api_keys_file", "admin_key_file")
    @classmethod
    def _homes_are_known(cls, folders: str | Path | None) -> str | Path | None:
        for part in str(folders).split(os.pathsep):
            try:
                Path(part).expanduser()
            except RuntimeError:
                if Path(part).parts[0] == "~":
                    raise ValueError(
                        f"{part} is in the home folder, and this user has none: set HOME, or another path"
                    ) from None
                raise ValueError(f"{part} begins with ~ and the name of an unknown user") from None
        return folders

    @model_validator(mode="after")
    def _no_port_is_taken_twice(self) -> Self:
        taken: dict[int, str] = {}
        for name in PORTS:
            port = getattr(self, name)
            if port and port in taken:
                both = " and ".join(PREFIX + one.upper() for one in (name, taken[port]))
                raise ValueError(f"{both} are both {port}: each takes a port of its own")
            taken[port] = name
        return self

    @model_validator(mode="after")
    def _one_body_fits_what_all_may_hold(self) -> Self:
        if self.max_body_bytes > self.uploads_bytes * 3 // 4:
            raise ValueError(
                f"CAPSNET_UPLOADS_BYTES is {self.uploads_bytes}, of which large bodies may take 3/4; "
                f"one of {self.max_body_bytes} bytes (CAPSNET_MAX_BODY_BYTES) would never be accepted"
            )
        return self

    @field_validator("tracing")
    @classmethod
    def _what_traces_is_installed(cls, wanted: bool) -> bool:
        try:
            is_installed = find_spec("opentelemetry.exporter.otlp.proto.http") is not None
        except ModuleNotFoundError:  # one of the packages above it
            is_installed = False
        if wanted and not is_installed:
            raise ValueError("OpenTelemetry is not installed: pip install -e '.[otel]'")
        return wanted

    @model_validator(mode="after")
    def _one_picture_fits_a_request(self) -> Self:
        if self.max_request_pixels < self.max_pixels:
            raise ValueError(
                f"CAPSNET_MAX_REQUEST_PIXELS is {self.max_request_pixels}, but one picture may have "
                f"{self.max_pixels} pixels (CAPSNET_MAX_PIXELS)"
            )
        return self

    @model_validator(mode="after")
    def _one_request_fits_the_queue(self) -> Self:
        largest = max(self.max_images_per_request, self.max_reconstructions)
        if largest > self.queue_images:
            raise ValueError(
                f"CAPSNET_QUEUE_IMAGES is {self.queue_images}, but one request may have {largest} images "
                "(CAPSNET_MAX_IMAGES_PER_REQUEST, CAPSNET_MAX_RECONSTRUCTIONS); it would never be served"
            )
        return self


def read_settings(**overrides: object) -> Settings:
    """Settings from the environment; overrides take precedence, unless they are None.

    Raises:
        SettingsError: a value is invalid, or a variable with our prefix has an unknown name; the message is
            one line and names the variable.
    """
    if unknown := [name for name, value in sorted(os.environ.items()) if _is_unknown(name, value)]:
        raise SettingsError("; ".join(f"there is no {name}; {_advice(name)}" for name in unknown))
    given = {name: value for name, value in overrides.items() if value is not None}
    for name in PORTS:
        if LINKED.fullmatch(_variable(name.upper())):
            given = {name: Settings.model_fields[name].default, **given}
    try:
        return Settings(**given)  # type: ignore[arg-type]  # pydantic checks them
    except ValidationError as error:
        faults = (_describe(fault["loc"], fault["msg"], fault["input"]) for fault in error.errors())
        raise SettingsError("; ".join(faults)) from None


def check_key_limit(name: str, number: float) -> None:
    """A limit of a key, `rate` or `concurrency`, is none or one that can be kept.

    Raises:
        ValueError: it is far too small or too large; the message says what was expected.
    """
    least, most, what = KEY_LIMITS[name]
    if number and not least <= number <= most:
        raise ValueError(f"expected {least} to {most} {what}, or 0 for any number")


def check_key_variable(settings: Settings) -> None:
    """Refuse to start without keys when the client's variable CAPSNET_API_KEY is set by mistake.

    Raises:
        SettingsError: CAPSNET_API_KEY is set and CAPSNET_API_KEYS is not. It may be meant for a client in
            the same shell, but an error is better than a service that is silently open to everybody.
    """
    if settings.api_keys is None and settings.api_keys_file is None and _variable("API_KEY"):
        raise SettingsError(
            "CAPSNET_API_KEY is the key of a client; the service takes its keys from CAPSNET_API_KEYS, which "
            "is not set: set it, or start the service with env -u CAPSNET_API_KEY if it is open to everybody"
        )


def _describe(location: tuple[int | str, ...], message: str, value: object) -> str:
    message = message.removeprefix("Value error, ")  # pydantic's prefix for errors of our validators
    if not location:
        return message
    shown = "(not shown)" if location[0] in SECRETS else repr(value)
    return f"{PREFIX}{str(location[0]).upper()}={shown}: {message}"


def _is_unknown(variable: str, value: str) -> bool:
    """Whether a variable has our prefix and is neither a setting nor another program's variable."""
    prefix, name = variable[: len(PREFIX)].upper(), variable[len(PREFIX) :].upper()
    is_link = LINK.fullmatch(name) is not None or LINKED.fullmatch(value) is not None
    return prefix == PREFIX and name not in _known() and not is_link


def _advice(variable: str) -> str:
    near = get_close_matches(variable[len(PREFIX) :].upper(), sorted(_known()), n=1)
    return f"did you mean {PREFIX}{near[0]}?" if near else "capsnet-serve --help lists the settings"


def _variable(name: str) -> str:
    """The value of the variable with this name after the prefix, in any case; "" if it is not set."""
    return next((value for given, value in os.environ.items() if given.upper() == PREFIX + name), "")


def _known() -> frozenset[str]:
    """Names of variables without their prefix."""
    return OTHERS | {name.upper() for name in Settings.model_fields}


def _keys(keys: SecretStr) -> list[str]:
    return [key.strip() for key in keys.get_secret_value().split(",")]
