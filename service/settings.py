"""The environment as `Settings`: every deployment fact, its unit and its default."""

import os
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "CAPSNET_"
MAX_PIXELS = 178_000_000  # Pillow refuses pictures of more than 178,956,970 itself
Device = Literal["auto", "cpu", "cuda", "tensorrt"]


class SettingsError(ValueError):
    """A setting has a value that cannot be used; one line that names the variable."""


class Settings(BaseSettings):
    """Deployment facts, each from the environment variable `CAPSNET_<NAME>`.

    Attributes:
        host: address to listen on; 0.0.0.0 for every interface.
        port: TCP port; 0 takes a free one.
        models: folders that hold `<model>/<version>/`, separated as in PATH. Versions of a model found in
            several are merged; where two hold the same version, the earlier folder's is taken.
        default_model: the model of requests that name none, if it is loaded.
        versions_kept: how many of the newest versions of each model are served.
        cache: folder for what is derived at load time, such as TensorRT engines.
        device: where graphs run. `auto` is CUDA if it can be had, else the CPU; never TensorRT, whose first
            start takes minutes. An explicit device that cannot be had stops the start.
        max_batch: images run at once, at most.
        queue_images: images that may wait for their run, per model version; beyond that requests get 503.
        deadline_ms: how long a request may wait for its results before it gets 504, in milliseconds.
        max_body_bytes: largest request body, in bytes.
        max_pixels: largest picture, in pixels, judged before it is decoded; at most 178 million.
        max_images_per_request: images in one request, at most.
        max_reconstructions: pictures that one sweep may ask for, at most.
        decode_threads: threads that decode and encode pictures.
        rescan_s: seconds between looks for newly published bundles; 0 never looks again.
        log_level: least severe message logged.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8000, ge=0, le=65535)
    models: str = Field(default="models", min_length=1)
    default_model: str = "capsnet-mnist"
    versions_kept: int = Field(default=2, ge=1)
    cache: Path = Path("~/.cache/capsnet")
    device: Device = "auto"
    max_batch: int = Field(default=32, ge=1, le=4096)
    queue_images: int = Field(default=1024, ge=1)
    deadline_ms: int = Field(default=30_000, ge=1)
    max_body_bytes: int = Field(default=32 * 2**20, ge=1024)
    max_pixels: int = Field(default=50_000_000, ge=1, le=MAX_PIXELS)
    max_images_per_request: int = Field(default=256, ge=1)
    max_reconstructions: int = Field(default=512, ge=1)
    decode_threads: int = Field(default=2, ge=1, le=64)
    rescan_s: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folders of `models`, in order of precedence."""
        return tuple(Path(part).expanduser() for part in self.models.split(os.pathsep) if part)

    @field_validator("models", "cache")
    @classmethod
    def _homes_are_known(cls, folders: str | Path) -> str | Path:
        for part in str(folders).split(os.pathsep):
            try:
                Path(part).expanduser()
            except RuntimeError:
                raise ValueError(f"{part} begins with ~ and the name of no user's home") from None
        return folders

    @model_validator(mode="after")
    def _one_request_fits_the_queue(self) -> Self:
        largest = max(self.max_images_per_request, self.max_reconstructions)
        if largest > self.queue_images:
            raise ValueError(
                f"CAPSNET_QUEUE_IMAGES is {self.queue_images}, but one request may bring {largest} images "
                "(CAPSNET_MAX_IMAGES_PER_REQUEST, CAPSNET_MAX_RECONSTRUCTIONS); it would never be served"
            )
        return self


def read_settings(**overrides: object) -> Settings:
    """Settings from the environment, with overrides in front of it; None overrides nothing.

    Raises:
        SettingsError: a value cannot be used; the message is one line and names the variable.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**given)  # type: ignore[arg-type]  # pydantic checks them
    except ValidationError as error:
        faults = (_describe(fault["loc"], fault["msg"], fault["input"]) for fault in error.errors())
        raise SettingsError("; ".join(faults)) from None


def _describe(location: tuple[int | str, ...], message: str, value: object) -> str:
    message = message.removeprefix("Value error, ")  # pydantic's word for what our validators raise
    if not location:
        return message
    return f"{PREFIX}{str(location[0]).upper()}={value!r}: {message}"
