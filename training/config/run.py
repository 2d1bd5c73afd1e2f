"""A run's whole configuration, and its form in JSON and TOML."""

import json
from dataclasses import field, fields
from difflib import get_close_matches
from typing import Any, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from training.config.data import DataConfig, WarpConfig
from training.config.loss import LossConfig
from training.config.model import (
    Block,
    CapsNetConfig,
    CnnConfig,
    MatrixCapsNetConfig,
    ModelConfig,
    StemConvolution,
)
from training.config.optimizer import OptimizerConfig
from training.config.renamed import with_current_names, with_original_names
from training.config.strict import STRICT

SEEDS = 2**32  # how many torch tells apart on a CPU


@dataclass(frozen=True, config=STRICT)
class RunConfig:
    """All that determines a training run, saved with its checkpoint.

    Attributes:
        preset: where the values come from.
        seed: of the weights, the order of the images and their shifts.
        started_from: the run or bundle whose weights this one began with, how they came about, and how many
            `steps_before` there were; None if random.
    """

    preset: str = "mnist"
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    model: ModelConfig = field(default_factory=CapsNetConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    started_from: dict[str, Any] | None = None

    @property
    def steps_before(self) -> int:
        """Steps of all stages before, whose random choices this one does not repeat.

        0 of a stage that an earlier version began: it does.
        """
        return int((self.started_from or {}).get("steps_before", 0))

    @model_validator(mode="after")
    def _refuse_a_loss_for_one_object_of_several(self) -> Self:
        loss, objects = self.loss.classification, self.data.spec.objects_per_image
        if loss != "margin" and objects > 1:
            raise ValueError(
                f"loss.classification: {loss} is for images of one object, {self.data.name} shows {objects}; "
                'take "margin"'
            )
        return self

    @model_validator(mode="after")
    def _refuse_a_stop_that_nothing_measures(self) -> Self:
        for name in ("stop_at_error_percent", "patience_epochs"):
            if getattr(self.optimizer, name) is not None and not self.data.validation_images:
                raise ValueError(
                    f"optimizer.{name}: there is no validation error, data.validation_images is 0"
                )
        return self

    @model_validator(mode="after")
    def _refuse_to_train_a_decoder_that_is_not_there(self) -> Self:
        if self.optimizer.trained_part == "decoder" and not getattr(self.model, "decoder_hidden", ()):
            raise ValueError("optimizer.trained_part: there is no decoder, model.decoder_hidden is empty")
        if self.optimizer.trained_part == "decoder" and self.optimizer.patience_epochs is not None:
            raise ValueError(
                "optimizer.patience_epochs: a decoder alone changes no answer that could improve"
            )
        return self

    @model_validator(mode="after")
    def _refuse_a_loss_of_the_object_where_there_may_be_none(self) -> Self:
        loss = self.loss.classification
        for option in ("blank_fraction", "scribble_fraction"):
            if loss != "margin" and getattr(self.data, option):
                raise ValueError(f"data.{option}: of an image without an object there is no {loss} loss")
        return self


_ADAPTER = TypeAdapter(RunConfig)
PARTS = (
    RunConfig,
    CapsNetConfig,
    StemConvolution,
    MatrixCapsNetConfig,
    CnnConfig,
    Block,
    LossConfig,
    DataConfig,
    WarpConfig,
    OptimizerConfig,
)
SETTINGS = sorted({setting.name for part in PARTS for setting in fields(part)})


def from_dict(values: dict[str, Any]) -> RunConfig:
    """Build a configuration from nested dictionaries (TOML or JSON), which may have earlier names of keys.

    Raises:
        ValueError: an unknown key or a value out of range; names each.
    """
    try:
        current = with_current_names(values) if isinstance(values, dict) else values
        # As JSON, where lists stand for tuples and yet `true` and "30" are no numbers.
        return _ADAPTER.validate_json(json.dumps(current, default=str), strict=True)
    except ValidationError as error:
        faults = "; ".join(f"{_place(e['loc'])}: {_fault(e)}" for e in error.errors())
        raise ValueError(f"configuration: {faults}") from None


def _fault(error: ErrorDetails) -> str:
    """What is wrong in the words of the configuration, where pydantic's are about its own parts."""
    if error["type"] == "union_tag_invalid":
        return f"expected a table whose architecture is one of {error['ctx']['expected_tags']}"
    if error["type"] == "unexpected_keyword_argument":
        name = str(error["loc"][-1])
        if name in SETTINGS:
            return "it is not a setting of this table"
        near = get_close_matches(name, SETTINGS, n=1)
        return f"there is no such setting; did you mean {near[0]}?" if near else "there is no such setting"
    return error["msg"].removeprefix("Value error, ")


def _place(location: tuple[int | str, ...]) -> str:
    """Where in the nested dictionaries a fault is; pydantic adds the architecture to a model's."""
    key, *rest = location or ("as a whole",)
    return ".".join(map(str, (key, *(rest[1:] if key == "model" and rest else rest))))


def differences(config: RunConfig) -> dict[str, Any]:
    """As `to_dict`, without defaults and under original names: the same when options are added or renamed."""
    plain: dict[str, Any] = _ADAPTER.dump_python(config, mode="json", exclude_defaults=True)
    return with_original_names(plain)


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Nested plain dictionaries, the inverse of `from_dict`."""
    plain: dict[str, Any] = _ADAPTER.dump_python(config, mode="json")
    return plain
