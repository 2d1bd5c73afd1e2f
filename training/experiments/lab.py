"""Where an experiment is carried out: the rows it has found so far, and the networks it trains for them.

A folder of an experiment holds `rows.jsonl`, one JSON object per thing measured, written as it is found; an
experiment that is run again goes on after the last one. Networks lie in a folder that experiments share, each
under a name that depends on all of its configuration, so that none is trained twice.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from training import checkpoint, provenance
from training.config import CapsNetConfig, RunConfig, differences
from training.examples import training_examples
from training.loop import Limits, Trainer
from training.models.build import Network

Row = dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """A network at the checkpoint with the lowest validation error, and how it came about.

    Attributes:
        run: its folder.
        config: of the run.
        model: in evaluation mode, on the lab's device.
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
        }


@dataclass(frozen=True)
class Lab:
    """Folders and device of an experiment.

    Attributes:
        out: the experiment's own folder.
        networks: holds the runs of all experiments.
        root: holds one folder per data set.
        device: where networks are trained and measured.
    """

    out: Path
    networks: Path
    root: Path
    device: torch.device

    def rows(self) -> list[Row]:
        """What has been found so far, in the order in which it was found."""
        file = self.out / "rows.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def measure(self, key: Row, find: Callable[[], Row]) -> Row:
        """A row of the experiment: what it found before, or else what it finds now.

        Args:
            key: what is measured; no other row of the experiment has these values under these names.
            find: measures it; its values may be numbers, texts, None, and lists and dictionaries of these.
        """
        for row in self.rows():
            if all(name in row and row[name] == value for name, value in key.items()):
                return row
        row = key | find() | {"command": provenance.command_line()}
        self.out.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(each) + "\n" for each in [*self.rows(), row])
        checkpoint.write_atomically(self.out / "rows.jsonl", lines)
        return row

    def keep(self, name: str, pictures: NDArray[np.uint8]) -> str:
        """Write pictures for a figure into the experiment's folder; returns the file's name, for a row."""
        self.out.mkdir(parents=True, exist_ok=True)
        np.save(self.out / f"{name}.npy", pictures)
        return f"{name}.npy"

    def session(self) -> checkpoint.Progress:
        """Hardware, command and commit, as what is trained now notes them."""
        return checkpoint.Progress(
            hardware=provenance.hardware(self.device),
            command=provenance.command_line(),
            source_commit=provenance.source_commit(),
        )

    def trained(self, config: RunConfig) -> Trained:
        """The network of a configuration: trained to the end now, unless it has been.

        Raises:
            MissingDataError: its data set is not here.
            KeyboardInterrupt: a signal stopped the training; it goes on from there when called again.
        """
        run = self.networks / run_name(config)
        train, validation = training_examples(config, self.root)
        with checkpoint.locked(run):
            checkpoint.write_config(run, config)
            session = self.session()
            trainer = Trainer(run, config, self.device, session)
            tqdm.write(f"{run.name}: {describe(config)}, on {session.hardware}")
            if not trainer.fit(train, validation, Limits()):
                raise KeyboardInterrupt
        model = checkpoint.load_model(run, checkpoint.best_checkpoint(run), self.device).eval()
        return Trained(run, config, model, trainer.progress)


def run_name(config: RunConfig) -> str:
    """Preset and seed for people, and a hash that no other configuration has."""
    digest = hashlib.sha256(json.dumps(differences(config), sort_keys=True).encode()).hexdigest()
    return f"{config.preset}-{config.seed}-{digest[:10]}"


def describe(config: RunConfig) -> str:
    """Preset, width, images, epochs and what ends these early, in a line."""
    model = config.model
    width = (
        f"{model.conv_channels} channels and {model.primary_types} capsule types"
        if isinstance(model, CapsNetConfig)
        else f"{'-'.join(str(block.channels) for block in model.blocks)} channels"
    )
    data, epochs = config.data, f"{config.optimiser.epochs} epochs"
    if data.epoch_images:
        epochs += f" of {data.epoch_images} images"
    if (enough := config.optimiser.stop_at_error_percent) is not None:
        epochs = f"at most {epochs}, until {enough:g} % of the validation images are named wrong"
    images = f"{data.training_images or 'all'} training images of {data.name}"
    return f"{config.preset} with {width}, {images}, {epochs}"
