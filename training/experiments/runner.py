"""Runs an experiment: keeps the rows that it has measured, and trains the networks that it needs.

An experiment's folder holds `rows.jsonl`, one JSON object per measurement, written at once; an interrupted
experiment continues after the last row. A row names its networks, and is measured anew if the plan now has
others. Experiments share a folder of networks, each under a name that depends on its whole configuration, so
that none is trained twice.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from export.contract.atomic_file import write_atomically
from training.config import CapsNetConfig, MatrixCapsNetConfig, OptimizerConfig, RunConfig, differences
from training.data.batches import Batch, Batches, make_batches
from training.data.readers.files import MissingDataError
from training.data.run_images import load_images, training_batches
from training.evaluate.evaluation import evaluate
from training.fit.loop import Limits
from training.fit.session import training_session
from training.models.build import Network
from training.runs import checkpoint, provenance
from training.runs.open_run import open_run

Row = dict[str, Any]
ROWS = "rows.jsonl"
COUNTS_KEPT_S = 60.0  # between writing down counts that are not finished


@dataclass(frozen=True)
class Trained:
    """A network, and how it came about.

    Attributes:
        run: its folder.
        config: of the run.
        model: in evaluation mode, on the runner's device; with which weights, says what returns it.
        progress: at the end of the run.
    """

    run: Path
    config: RunConfig
    model: Network
    progress: checkpoint.Progress

    @property
    def origin(self) -> Row:
        """What a row says of the network it was measured on."""
        return {
            "network": self.run.name,
            "setting": describe(self.config),
            "seed": self.config.seed,
            "hours": round(self.progress.train_seconds / 3600, 4),
            "steps": self.progress.step,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "hardware": self.progress.hardware,
            "source_commit": self.progress.source_commit,
            "resumed": list(self.progress.resumed),
        }


@dataclass(frozen=True)
class Runner:
    """Folders and device of an experiment.

    Attributes:
        out: the experiment's own folder.
        networks: holds the runs of all experiments.
        root: holds one folder per data set.
        device: where networks are trained and measured.
        missing: data sets that an experiment wanted and that are not there, and how to get them.
    """

    out: Path
    networks: Path
    root: Path
    device: torch.device
    missing: dict[str, str] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        """What has been found so far, in the order in which it was found.

        Raises:
            ValueError: a line of the file is damaged.
        """
        return read_rows(self.out)

    def measure(self, key: Row, settings: Row, find: Callable[[], Row]) -> Row:
        """The row of a key with these settings: the one found before, or else measured now.

        A new row removes what an older plan left, so that no mean mixes two plans: the row of the same key
        with other settings, those of other seeds of this key with other settings, and all rows of these
        rows' kinds (the same network with other seeds, see `networks_of`) with other settings.

        Args:
            key: what is measured; no other row of the experiment has these values under these names.
            settings: how it is measured: `networks_of`, and what the plan says of the test images.
            find: measures it; its values may be numbers, texts, None, and lists and dictionaries of these.

        Raises:
            ValueError: a line of what was found before is damaged, or two found it differently.
        """
        numbered = _numbered_rows(self.out)
        there = [number for number, row in numbered.items() if _has(row, key | settings)]
        if len(there) > 1:  # by two machines: a mean would count its seed twice
            raise ValueError(
                f"{self.out / ROWS}, lines {there[0]} and {there[1]} are two measurements of the same; "
                "remove one of the lines"
            )
        if there:
            return numbered[there[0]]
        row = key | settings | find() | {"command": provenance.command_line()}
        rows = _without_older_plan(self.rows(), key, settings)  # as they are now: to find one takes hours
        self.out.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(each) + "\n" for each in [*rows, row])
        write_atomically(self.out / ROWS, lines)
        self._unfinished(key | settings).unlink(missing_ok=True)
        return row

    def count(self, what: Row, batches: Iterable[Batch], of_batch: Callable[[Batch], Tensor]) -> Tensor:
        """Counts summed over batches, for what takes hours: an interruption loses a minute of it.

        Args:
            what: key and settings of the row that is counted for; its counts are removed once it is written.
            batches: the same ones each time.
            of_batch: counts of one of them, int64 on the CPU.

        Raises:
            ValueError: what was counted before is damaged; names the file.
        """
        unfinished = self._unfinished(what)
        done, counts = 0, torch.zeros((), dtype=torch.int64)
        if unfinished.exists():
            try:
                saved = json.loads(unfinished.read_bytes())
                done, counts = int(saved["images"]), torch.tensor(saved["counts"], dtype=torch.int64)
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{unfinished} is damaged: {error}; remove it to count anew") from None
        written, seen = time.monotonic(), 0
        for batch in batches:
            seen += len(batch)
            if seen <= done:
                continue
            if seen - len(batch) < done:  # the batches were of another size: on another device
                batch = batch[-(seen - done) :]
            counts = counts + of_batch(batch)
            if time.monotonic() - written > COUNTS_KEPT_S:
                self.out.mkdir(parents=True, exist_ok=True)
                so_far = json.dumps({"images": seen, "counts": counts.tolist()})
                write_atomically(unfinished, so_far)
                written = time.monotonic()
        return counts

    def _unfinished(self, what: Row) -> Path:
        """Where counts for a row are kept until it is there."""
        digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
        return self.out / f"unfinished-{digest[:10]}.json"

    def measured_on_test(self, config: RunConfig, versions: int = 1, max_images: int | None = None) -> Row:
        """The errors of a configuration's network on the test images, for a row.

        Args:
            config: of the network, which is trained if it has not been.
            versions: how often each image is shown, see `batches.fixed`.
            max_images: how many of the test images, from the first; None takes all.
        """
        shown = self.evaluation_batches(config, max_images)
        trained = self.trained(config)
        found = evaluate(trained.model, shown, config.loss, versions)
        return {
            "error_percent": found.error_percent,
            "object_error_percent": found.object_error_percent,
            "images": found.images,
            **trained.origin,
        }

    def evaluation_batches(self, config: RunConfig, max_images: int | None = None) -> Batches:
        """What a configuration's network is measured on, on the runner's device: it is made there, too.

        Args:
            config: of the network.
            max_images: how many of the test images, from the first; None takes all.
        """
        images = load_images(config, "test", self.root)[:max_images]
        return make_batches(config.data, config.model.classes, images.to(self.device))

    def keep(self, name: str, pictures: NDArray[np.uint8]) -> str:
        """Write pictures for a figure into the experiment's folder; returns the file's name, for a row."""
        self.out.mkdir(parents=True, exist_ok=True)
        np.save(self.out / f"{name}.npy", pictures)
        return f"{name}.npy"

    def trained(self, config: RunConfig) -> Trained:
        """The network of a configuration at its lowest validation error: trained now, unless it has been.

        Raises:
            MissingDataError: its data set is not here.
            KeyboardInterrupt: a signal stopped the training; it goes on from there when called again.
        """
        run, progress = self._train(config)
        return Trained(run, config, open_run(run, self.device).model, progress)

    def trained_to_the_end(self, config: RunConfig) -> Trained:
        """The same network as training left it, with its last weights."""
        run, progress = self._train(config)
        last = checkpoint.checkpoint_at(run, progress.step)
        return Trained(run, config, checkpoint.load_model(run, last, self.device).eval(), progress)

    def _train(self, config: RunConfig) -> tuple[Path, checkpoint.Progress]:
        run = self.networks / run_name(config)
        train, validation = training_batches(config, self.root)
        with training_session(run, config, self.device) as trainer:
            tqdm.write(f"{run.name}: {describe(config)}, on {trainer.session.hardware}")
            before = trainer.resumed_from
            if not trainer.fit(train, validation, Limits()) or trainer.interrupted:
                raise KeyboardInterrupt
        if before and before.step == trainer.progress.step:  # finished before, not resumed now
            return run, before
        return run, trainer.progress


def measure_each(
    runner: Runner, sets: Iterable[str], measure: Callable[[str], None], all_wanted: bool = False
) -> None:
    """Measure on each data set that is available, and say how to get the others.

    Args:
        runner: notes those that are missing.
        sets: names of data sets.
        measure: on one of them.
        all_wanted: the paper has all of them, and none stands in for another.

    Raises:
        MissingDataError: none is there, or one is not that is wanted.
    """
    runner.missing.clear()
    for data in (names := list(sets)):
        try:
            measure(data)
        except MissingDataError as error:
            tqdm.write(f"{data} is not measured: {error}")
            runner.missing[data] = str(error)
    if len(runner.missing) == len(names) or (all_wanted and runner.missing):
        raise MissingDataError("; or ".join(runner.missing.values()))


def read_rows(out: Path) -> list[Row]:
    """What an experiment's folder holds, in the order in which it was found.

    A row that differs from an earlier one in nothing but its command is left out: it was copied, and both
    folders were joined.

    Raises:
        ValueError: a line is damaged; names it.
    """
    return list(_numbered_rows(out).values())


def _numbered_rows(out: Path) -> dict[int, Row]:
    """As `read_rows`, by the number of their line, from 1."""
    file = out / ROWS
    lines = file.read_bytes().splitlines() if file.exists() else []
    found: dict[str, tuple[int, Row]] = {}
    for number, line in enumerate(lines, 1):
        row = _read_row(line, f"{file}, line {number}")
        found.setdefault(json.dumps(row | {"command": ""}, sort_keys=True), (number, row))
    return dict(found.values())


def data_sets(rows: list[Row]) -> list[str]:
    """What rows were measured on, in the order in which it was."""
    return list(dict.fromkeys(row["data"] for row in rows))


def _read_row(line: bytes, where: str) -> Row:
    """A row; every one has the command that found it."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(
            f"{where} is damaged: {error}; remove the line to measure anew what it held"
        ) from None
    if not isinstance(row, dict) or "command" not in row:
        raise ValueError(f"{where} is not a row of an experiment; remove the line")
    return row


def rows_of(rows: list[Row], **values: object) -> list[Row]:
    """The rows with these values, each of which has all their names."""
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def _has(row: Row, values: Row) -> bool:
    return all(name in row and row[name] == value for name, value in values.items())


def _without_older_plan(rows: list[Row], key: Row, settings: Row) -> list[Row]:
    """What stays of some rows when one of this key is measured with these settings; see `Runner.measure`."""
    replaced = [row for row in rows if _has(row, key) or _is_of_older_seed(row, key, settings)]
    kinds = {row.get("kind") for row in replaced}
    others = [row for row in rows if row not in replaced]
    return [row for row in others if row.get("kind") not in kinds or _agrees(row, settings)]


def _is_of_older_seed(row: Row, key: Row, settings: Row) -> bool:
    """Whether a row has this key but for its seed, and other settings; not all keys have a seed."""
    if "seed" not in key or "seed" not in row:
        return False
    return _has(row, key | {"seed": row["seed"]}) and not _agrees(row, settings)


def _agrees(row: Row, settings: Row) -> bool:
    """Whether a row was measured with the same settings; the network may be that of another seed."""
    return all(row.get(name, value) == value for name, value in settings.items() if name != "network")


def networks_of(*configs: RunConfig) -> Row:
    """What a row records of its networks, so that a change of them is noticed.

    Returns:
        `network`, the run's name, or of several `members`, all names; and `kind`, the same for all seeds.
    """
    names = [run_name(config) for config in configs]
    which: Row = {"network": names[0]} if len(names) == 1 else {"members": names}
    return which | {"kind": run_name(replace(configs[0], seed=0))}


def run_name(config: RunConfig) -> str:
    """Preset and seed for people, and a hash that no other configuration has."""
    digest = hashlib.sha256(json.dumps(differences(config), sort_keys=True).encode()).hexdigest()
    return f"{config.preset}-{config.seed}-{digest[:10]}"


def describe(config: RunConfig) -> str:
    """Preset, width, images, epochs and what ends these early, batch and rate, in a line."""
    data, epochs = config.data, f"{config.optimizer.epochs} epochs"
    if data.epoch_images:
        epochs += f" of {data.epoch_images} images"
    if (enough := config.optimizer.stop_at_error_percent) is not None:
        epochs = f"at most {epochs}, until {enough:g} % of the validation images are misclassified"
    size = config.model.image_size
    images = f"{data.training_images or 'all'} training images of {data.name}"
    if data.familiar:
        images += f" under familiar viewpoints, by {data.familiar}"
    elif not data.training_images:
        of_toys = ", of one toy of each category," if data.held_out == "toys" else ""
        images += f" but {data.validation_images}{of_toys} held out"
    images += f", shown as {size}x{size} pixels"
    return f"{config.preset} with {_width(config)}, {images}, {epochs}, {_steps(config.optimizer)}"


def _width(config: RunConfig) -> str:
    """Of all layers that the quick form narrows, and how it is routed."""
    model = config.model
    if isinstance(model, CapsNetConfig):
        decoder = f"a decoder of {_joined(model.decoder_hidden)}" if model.decoder_hidden else "no decoder"
        channels = _joined([*(layer.channels for layer in model.stem), model.conv_channels])
        return (
            f"{channels} channels, {model.primary_types} capsule types, "
            f"{_iterations(model.routing_iterations)} and {decoder}"
        )
    if isinstance(model, MatrixCapsNetConfig):
        types = _joined([model.primary_types, *model.conv_caps_types])
        decoder = f", a decoder of {_joined(model.decoder_hidden)}" if model.decoder_hidden else ""
        return (
            f"{model.conv_channels} channels, {types} types of matrix capsules{decoder}{_ablations(config)} "
            f"and {_iterations(model.routing_iterations)} with {_lambdas(model)}"
        )
    channels = _joined(block.channels for block in model.blocks)
    connected = f" and fully connected layers of {_joined(model.hidden)}" if model.hidden else ""
    return f"{channels} channels{connected}"


def _lambdas(model: MatrixCapsNetConfig) -> str:
    """What lambda grows towards from iteration to iteration, or how it is calibrated."""
    usual, deviation = model.inverse_temperature, model.activation_logit_sd
    of_classes = usual * model.class_temperature_fraction
    if not deviation:
        return f"lambda growing towards {usual:g} (class capsules {of_classes:g})"
    momentum = model.calibration_momentum
    follows = f", following each batch by {momentum:g}" if momentum else ""
    return (
        f"lambda calibrated to logits with a deviation of {deviation:g}{follows} "
        f"(class capsules: growing towards {of_classes:g})"
    )


def _ablations(config: RunConfig) -> str:
    """In what matrix capsules are not those of Sec. 4 of their paper."""
    model = config.model
    assert isinstance(model, MatrixCapsNetConfig)
    others = {
        "vector poses": model.vector_poses,
        "no coordinates": not model.coordinate_addition,
        "mixing proportions": model.mixing_proportions,
        "the official code's routing": model.official_routing,
        f"density to the power {model.density_exponent:g} in the E-step": model.density_exponent != 1,
        f"matrices of the identity and noise of {model.matrix_noise:g}": (
            model.matrix_noise != MatrixCapsNetConfig.matrix_noise
        ),
        f"{config.loss.classification} loss": config.loss.classification != "spread",
    }
    return "".join(f", {what}" for what, is_so in others.items() if is_so)


def _iterations(count: int) -> str:
    return f"{count} iteration{'' if count == 1 else 's'} of routing"


def _joined(numbers: Iterable[int]) -> str:
    return "-".join(map(str, numbers))


def _steps(optimizer: OptimizerConfig) -> str:
    text = f"batches of {optimizer.batch_size}, rate {optimizer.learning_rate:g}"
    if last := optimizer.cooldown_epochs:
        text += f" that falls to 0 over the last {'epoch' if last == 1 else f'{last} epochs'}"
    if optimizer.warmup_steps:
        text += f", a warm-up of at most {optimizer.warmup_steps} steps"
    if optimizer.ema_decay:
        text += f", weights averaged with a decay of {optimizer.ema_decay:g} per step"
    return text
