"""The training loop.

Every random choice is a function of the seed and of the step or epoch it is made in. So a checkpoint needs
no generator state, and a resumed run makes the same choices as one that was never stopped.
"""

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from training.config import RunConfig
from training.data.batches import Batches
from training.data.seeding import generator_for, seed_for
from training.evaluate.evaluation import Evaluation, evaluate
from training.evaluate.inspection import activity, summary
from training.fit.copies import Copies
from training.fit.distributed import ALONE, Processes
from training.fit.ema import ExponentialMovingAverage
from training.fit.schedule import learning_rate, steps_per_epoch
from training.fit.signals import stop_on_signal
from training.fit.step import TrainStep
from training.loss.losses import spread_margin
from training.loss.objective import total_loss
from training.models.build import Network, build
from training.models.calibration import calibrate
from training.models.matrix_capsnet import MatrixCapsNet
from training.runs import checkpoint
from training.runs.checkpoint import Progress
from training.runs.inspection import sample
from training.runs.log import Log
from training.runs.weights import DECODER, start_with

INSPECTED = 32  # validation images that the activations of matrix capsules are measured on while training
LOG_EVERY = 50  # steps; in between, losses stay on the device, so that nothing waits for a GPU
SAVES_BEST_EPOCHS_ONLY = {"cuda"}  # where one may last a second, and writing a checkpoint as long
DROPOUT_SEED_OFFSET = 10**9  # added to a step's seed, which is that of the random choices in the data


class TrainingDivergedError(ValueError):
    """The loss or a weight is not finite; names the step and the last good checkpoint."""


@dataclass(frozen=True)
class Limits:
    """When to write checkpoints, and when to stop early.

    Attributes:
        max_minutes: that this session may take, validation included; None means no limit.
        checkpoint_minutes: between checkpoints; each epoch ends with one as well; on CUDA, where an epoch
            may last a second, only if it is the best so far.
    """

    max_minutes: float | None = None
    checkpoint_minutes: float = 5.0


class Trainer:
    """A run in progress: model, optimizer, and how far they have come."""

    def __init__(
        self,
        run: Path,
        config: RunConfig,
        device: torch.device,
        session: Progress,
        start_weights: dict[str, Tensor] | None = None,
        processes: Processes = ALONE,
        copies: Copies | None = None,
    ):
        """Start a run, or continue from its newest checkpoint.

        Args:
            run: the run's folder.
            config: the run's configuration.
            device: where to train.
            session: hardware, command and commit of this session; its counts are not read.
            start_weights: of another run or a bundle, to begin with instead of random ones.
            processes: train together, each with a trainer like this one; the first alone writes.
            copies: of the run on other machines, which are brought up to date after each checkpoint.
        """
        self.run, self.config, self.device, self.processes = run, config, device, processes
        self.copies = copies or Copies(run, processes)
        torch.manual_seed(config.seed)
        self.model = build(config.model).to(device)
        newest = checkpoint.newest_checkpoint(run)
        if newest:
            checkpoint.load_trained_weights(self.model, newest)
        elif start_weights:
            start_with(self.model, start_weights)
        if config.optimizer.trained_part == "decoder":
            for name, parameter in self.model.named_parameters():
                if not name.startswith(DECODER):
                    parameter.requires_grad_(False)
        self._train_step = TrainStep(
            self.model,
            config.loss,
            config.optimizer.learning_rate,
            config.optimizer.weight_decay,
            processes=processes,
        )
        self.optimizer = self._train_step.optimizer
        decay = config.optimizer.ema_decay
        self.average = ExponentialMovingAverage(self.model, decay) if decay else None
        self.session = self.progress = session
        self._calibrates = newest is None and start_weights is None
        self.resumed_from: Progress | None = None  # at the checkpoint that this session continues
        self.interrupted = False  # by a signal, even if the run is finished; or because torchrun is gone
        self._saved_step: int | None = None
        self._order: Tensor | None = None  # of the images in this epoch
        if newest:
            self._go_on_from(newest)

    def _go_on_from(self, newest: Path) -> None:
        """Take over what a checkpoint holds beside the weights that are trained.

        Each process reads its own copy, and all go on from the first one's, as they do with the weights.
        """
        checkpoint.load_optimizer(newest, self.model, self.optimizer)
        for moments in self.optimizer.state.values():
            self.processes.share_first(moments.values())
        if self.average:
            checkpoint.load_weights(self.average.model, newest)
            self.processes.share_first(self.average.model.state_dict().values())
        self.resumed_from = self.processes.of(checkpoint.read_progress(newest))
        self._saved_step = self.resumed_from.step
        changed = checkpoint.configured_anew(newest, self.config)
        self.progress = self.resumed_from.resumed_by(self.session, changed)
        if checkpoint.trained_config(newest).loss != self.config.loss:
            # What was found with the other loss says nothing of this one.
            self.progress = replace(
                self.progress, best_loss=None, lowest_loss=None, improved_epochs=self.progress.epochs
            )

    def fit(self, train: Batches, validation: Batches | None, limits: Limits) -> bool:
        """Train to the last epoch, or until validation meets the configuration's stop condition.

        A limit or a signal stops it earlier. It always ends with a checkpoint. Without validation images, the
        last weights are the run's result.

        Returns:
            Whether the run is finished.

        Raises:
            TrainingDivergedError: the loss or a weight is not finite.
            ValueError: the processes cannot share a batch evenly.
        """
        batch_size = min(self.config.optimizer.batch_size, len(train))
        self.processes.check_batch(batch_size)
        train = train.to(self.device)
        validation = validation.to(self.device) if validation is not None else None
        per_epoch = steps_per_epoch(self.config.optimizer, len(train))
        last = per_epoch * self.config.optimizer.epochs
        self._since = self._started = self._saved = time.monotonic()
        if self._calibrates:
            self._calibrate(train, per_epoch)
        with self._log() as log, stop_on_signal() as signals, self._bar(last, batch_size) as bar:
            losses: list[Tensor] = []
            stopped = False
            while not stopped and not self._finished(last):
                losses.append(self._step(train, per_epoch))
                self._count_step(per_epoch)
                bar.update(batch_size)
                epoch_ends = self.progress.step % per_epoch == 0
                stopped, checkpoint_due = self._due(limits, signals)
                if self.progress.step % LOG_EVERY == 0 or epoch_ends or checkpoint_due or stopped:
                    self._log_losses(losses, per_epoch, log, bar)
                    losses = []
                if epoch_ends and validation is not None:
                    self._validate(validation, log, bar)
                is_best = self.progress.best_step == self.progress.step
                if checkpoint_due or (
                    epoch_ends and (is_best or self.device.type not in SAVES_BEST_EPOCHS_ONLY)
                ):
                    self.save()
                    self._saved = time.monotonic()
                if checkpoint_due or epoch_ends:
                    self._since = time.monotonic()
            if self._saved_step != self.progress.step:
                self.save()
            self.interrupted |= bool(signals)  # after the last step, too
        return self._finished(last)

    def _calibrate(self, train: Batches, per_epoch: int) -> None:
        """Set what matrix capsules measure on the first batch: all of it, the same in every process."""
        self._calibrates = False
        if not isinstance(self.model, MatrixCapsNet):
            return
        index = self._batch_index(len(train), per_epoch)
        batch = train.random(index, generator_for(self.config.seed, 0, self.device))
        calibrate(self.model, batch.pixels, batch.brightness_contrast)
        self.processes.share_first(self.model.buffers())

    def _due(self, limits: Limits, signals: list[int]) -> tuple[bool, bool]:
        """Whether to stop, and whether to write a checkpoint; the processes agree on both."""
        now = time.monotonic()
        out_of_time = limits.max_minutes is not None and now - self._started > 60 * limits.max_minutes
        checkpoint_due = now - self._saved > 60 * limits.checkpoint_minutes
        self.interrupted, out_of_time, checkpoint_due = self.processes.any_of(
            bool(signals) or self.processes.orphaned, out_of_time, checkpoint_due
        )
        return self.interrupted or out_of_time, checkpoint_due

    @property
    def result(self) -> Network:
        """The run's result so far: the trained network, or the one with averaged weights."""
        return self.average.model if self.average else self.model

    def save(self) -> None:
        """Write a checkpoint, and give it to the other machines; all processes call it together.

        Raises:
            TrainingDivergedError: a weight is not finite.
        """
        if self.processes.first:
            self._write()
        self._saved_step = self.progress.step
        self.copies.update()

    def _write(self) -> None:
        average = self.average.model if self.average else None
        try:
            checkpoint.save(self.run, self.model, self.optimizer, self.progress, self.config, average)
        except checkpoint.NotFiniteError as error:
            raise self._diverged(str(error)) from None

    def _finished(self, last: int) -> bool:
        """Whether the last step is done, or validation has reached its target or stopped improving."""
        optimizer, best = self.config.optimizer, self.progress.best_error_percent
        if self.progress.step >= last:
            return True
        if best is None:
            return False
        enough, patience = optimizer.stop_at_error_percent, optimizer.patience_epochs
        since_improvement = self.progress.epochs - self.progress.improved_epochs
        return (enough is not None and best <= enough) or (
            patience is not None and since_improvement >= patience
        )

    def _step(self, train: Batches, per_epoch: int) -> Tensor:
        """One optimizer step; returns classification and reconstruction loss, [2], on the device."""
        step = self.progress.step
        choice = self.config.steps_before + step  # each stage makes others
        generator = generator_for(self.config.seed, choice, self.device)
        index = self._batch_index(len(train), per_epoch)
        batch = train.random(index, generator, self.processes.part(len(index)))
        own = choice * self.processes.count + self.processes.rank
        torch.manual_seed(seed_for(self.config.seed, DROPOUT_SEED_OFFSET + own))
        rate = learning_rate(self.config.optimizer, step, per_epoch)
        margin = spread_margin(self.config.loss, step, per_epoch * self.config.optimizer.epochs)
        losses = self._train_step(batch, rate, margin)
        if self.average:
            self.average.update(self.model, step)
        return losses

    def _batch_index(self, images: int, per_epoch: int) -> Tensor:
        """Which images this step trains on: each epoch goes through its own permutation."""
        epoch, within = divmod(self.progress.step, per_epoch)
        if within == 0 or self._order is None:
            # Below 0, where no step's choices are; so far from those of earlier stages as there were steps.
            generator = generator_for(self.config.seed, -1 - epoch - self.config.steps_before)
            self._order = torch.randperm(images, generator=generator).to(self.device)
        size = self.config.optimizer.batch_size
        return self._order[within * size : (within + 1) * size]

    def _count_step(self, per_epoch: int) -> None:
        step = self.progress.step + 1
        self.progress = replace(self.progress, step=step, epochs=step / per_epoch)

    def _count_time(self) -> None:
        """Add the time since validation, or the last call; the device has finished its steps."""
        now = time.monotonic()
        spent = self.progress.train_seconds + now - self._since
        self.progress, self._since = replace(self.progress, train_seconds=spent), now

    def _log_losses(self, losses: list[Tensor], per_epoch: int, log: Log, bar: "tqdm[Any]") -> None:
        """Fetch the losses since the last time; stop the run if one of them is not finite."""
        fetched = self.processes.mean(torch.stack(losses)).double().cpu()  # [steps, 2]
        self._count_time()
        first = self.progress.step - len(losses) + 1
        finite = fetched.isfinite().all(dim=1)
        if not finite.all():
            raise self._diverged(f"loss is not finite at step {first + int((~finite).int().argmax())}")
        classification, reconstruction = fetched.mean(dim=0).tolist()
        total = total_loss(classification, reconstruction, self.config.loss)
        rate = learning_rate(self.config.optimizer, self.progress.step - 1, per_epoch)
        log.write(
            self.progress,
            "train",
            loss=total,
            classification_loss=classification,
            reconstruction_loss=reconstruction,
            learning_rate=rate,
        )
        bar.set_postfix(loss=f"{total:.4f}", refresh=False)

    def _diverged(self, what: str) -> TrainingDivergedError:
        good = checkpoint.newest_checkpoint(self.run)
        where = f"the last good checkpoint is {good}" if good else "there is no checkpoint before it"
        return TrainingDivergedError(f"{what}; {where}. Try a lower learning rate or another seed.")

    def _validate(self, validation: Batches, log: Log, bar: "tqdm[Any]") -> None:
        """Evaluate in the first process, and tell the others."""
        if self.processes.first:
            self._measure(validation, log, bar)
        self.progress = self.processes.of(self.progress)

    def _measure(self, validation: Batches, log: Log, bar: "tqdm[Any]") -> None:
        found = evaluate(self.result, validation, self.config.loss)
        is_best = self.progress.is_best(found.error_percent, found.classification_loss)
        self._count_improvement(found)
        if is_best:
            self.progress = replace(
                self.progress,
                best_step=self.progress.step,
                best_error_percent=found.error_percent,
                best_loss=found.classification_loss,
            )
        log.write(
            self.progress,
            "validation",
            error_percent=found.error_percent,
            object_error_percent=found.object_error_percent,
            classification_loss=found.classification_loss,
            reconstruction_loss=found.reconstruction_loss,
        )
        if isinstance(self.result, MatrixCapsNet) and len(validation) > 1:
            [shown] = sample(validation, INSPECTED).fixed(INSPECTED)
            log.write(self.progress, "routing", **summary(activity(self.result, shown.pixels)))
        bar.write(f"epoch {self.progress.epochs:g}: validation error {found.error_percent:.2f} %")

    def _count_improvement(self, found: Evaluation) -> None:
        """Note this epoch if validation is the best so far; without errors the loss no longer counts."""
        progress, loss = self.progress, found.classification_loss
        best, lowest = progress.best_error_percent, progress.lowest_loss
        if best is None or lowest is None or found.error_percent < best or (best > 0 and loss < lowest):
            progress = replace(progress, improved_epochs=progress.epochs)
        self.progress = replace(progress, lowest_loss=loss if lowest is None else min(loss, lowest))

    def _log(self) -> Log:
        return Log(self.run if self.processes.first else None, self.progress.step)

    def _bar(self, last: int, batch_size: int) -> "tqdm[Any]":
        """Progress in images, with rate and remaining time."""
        seconds = 0.1 if sys.stderr.isatty() else 30  # a file keeps every line
        return tqdm(
            total=last * batch_size,
            initial=self.progress.step * batch_size,
            unit="image",
            unit_scale=True,
            smoothing=0.05,
            disable=not self.processes.first,
            mininterval=seconds,
            maxinterval=max(10, seconds),
        )
