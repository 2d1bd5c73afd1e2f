"""Fit and evaluate.

Every random choice is a function of the seed and of the step or epoch it is made in. So a checkpoint needs
no generator state, and a resumed run makes the same choices as one that was never stopped.
"""

# B batch, J classes

import json
import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from training import checkpoint
from training.checkpoint import Progress
from training.config import LossConfig, OptimiserConfig, RunConfig
from training.data.augment import blank_some, random_shift
from training.data.images import Images
from training.losses import margin_loss, reconstruction_loss
from training.models.capsnet import CapsNet, lengths

LOG_EVERY = 50  # steps; losses stay on the device in between, so that a GPU is never waited for
EVALUATION_BATCH = 250

logger = logging.getLogger(__name__)


class TrainingDivergedError(ValueError):
    """The loss or a weight is not finite; names the step and the last good checkpoint."""


@dataclass(frozen=True)
class Evaluation:
    """Measured on a set of images.

    Attributes:
        images: how many.
        errors: how many of them the longest capsule gets wrong.
        margin_loss: Eq. 4, mean over images.
        reconstruction_loss: squared error summed over pixels, mean over images; 0 without a decoder.
    """

    images: int
    errors: int
    margin_loss: float
    reconstruction_loss: float

    @property
    def error_percent(self) -> float:
        """Share of wrong answers."""
        return 100 * self.errors / self.images


@dataclass(frozen=True)
class Limits:
    """When to write checkpoints and when to stop before the last epoch.

    Attributes:
        max_minutes: training time of this session; None means no limit.
        checkpoint_minutes: between two checkpoints; there is one at each epoch's end as well.
    """

    max_minutes: float | None = None
    checkpoint_minutes: float = 5.0


def learning_rate(config: OptimiserConfig, step: int, per_epoch: int) -> float:
    """Rate of the step with this index, from 0: exponential decay with a floor, then the cooldown."""
    decayed = config.learning_rate * config.decay_rate ** (step / config.decay_steps)
    rate = max(decayed, config.min_learning_rate)
    if not config.cooldown_epochs:
        return rate
    left = config.epochs * per_epoch - step
    return rate * min(1.0, left / (config.cooldown_epochs * per_epoch))


def steps_per_epoch(config: OptimiserConfig, images: int) -> int:
    """Batches in a pass over the images; what is left over waits for the next epoch's order."""
    return max(images // config.batch_size, 1)


def to_pixels(images: Tensor) -> Tensor:
    """uint8 0-255 to float32 0-1."""
    return images.float() / 255


@torch.no_grad()
def evaluate(model: CapsNet, images: Images, config: LossConfig) -> Evaluation:
    """Classify images and reconstruct each from the capsule of its true class."""
    device = next(model.parameters()).device
    errors = torch.zeros((), dtype=torch.int64, device=device)
    losses = torch.zeros(2, dtype=torch.float64, device=device)
    for start in range(0, len(images), EVALUATION_BATCH):
        batch = images[start : start + EVALUATION_BATCH].to(device)
        present = F.one_hot(batch.labels, model.config.classes).float()
        v, margin, reconstruction = _forward(model, to_pixels(batch.pixels), present, config)
        errors += (lengths(v).argmax(dim=1) != batch.labels).sum()
        losses += torch.stack([margin, reconstruction]) * len(batch)
    margin_mean, reconstruction_mean = (losses / len(images)).tolist()
    return Evaluation(len(images), int(errors), margin_mean, reconstruction_mean)


class Step:
    """An optimiser step: forward, backward, Adam. Nothing in it waits for a GPU.

    On CUDA the maps lie channels last, the convolutions compute in bfloat16, and both passes are captured in
    CUDA graphs at the first step: there are some hundred short kernels in them, and launching these one by
    one can take longer than running them.
    """

    def __init__(self, model: CapsNet, config: LossConfig, learning_rate: float, graphs: bool = True):
        """Bring the model's weights into the order the device likes, and start Adam on them.

        Args:
            model: on the device where it is trained.
            config: of the losses.
            learning_rate: until a step says otherwise.
            graphs: False launches the kernels one by one on CUDA, too.
        """
        on_cuda = next(model.parameters()).is_cuda
        if on_cuda:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
        self.optimiser = torch.optim.Adam(model.parameters(), lr=learning_rate, fused=True)
        self._reconstruction_weight = config.reconstruction_weight
        self._losses: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = _Losses(model, config)
        self._capture_next = graphs and on_cuda

    def __call__(self, pixels: Tensor, present: Tensor, learning_rate: float) -> Tensor:
        """Learn from a batch.

        Args:
            pixels: images, [B, C, H, W], 0 to 1; B is that of all steps.
            present: 1 where a class is in the image, [B, J].
            learning_rate: of this step.

        Returns:
            Margin and reconstruction loss, [2], on the device.
        """
        if self._capture_next:
            self._capture(pixels, present)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        # Not to zeros: what a replay leaves in .grad is its own buffer, to which nothing may be added.
        self.optimiser.zero_grad(set_to_none=True)
        margin, reconstruction = self._losses(pixels, present)
        (margin + self._reconstruction_weight * reconstruction).backward()
        self.optimiser.step()
        return torch.stack([margin, reconstruction]).detach()

    def _capture(self, pixels: Tensor, present: Tensor) -> None:
        """Replace the losses by a replay of their kernels; where that cannot be, say so and go on without."""
        self._capture_next = False
        # The graphs keep gradient nodes of the stream they were captured on, as is meant.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        try:
            self._losses = torch.cuda.make_graphed_callables(  # type: ignore[assignment]  # the same module
                self._losses, (pixels.clone(), present.clone())
            )
        except RuntimeError as error:
            logger.warning("no CUDA graph could be captured, steps are launched one by one: %s", error)


class _Losses(nn.Module):
    """Margin and reconstruction loss of a batch, under autocast on CUDA; a module, as CUDA graphs want it."""

    def __init__(self, model: CapsNet, config: LossConfig):
        super().__init__()
        self.model, self.config = model, config

    def forward(self, pixels: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        # Weights cast to bfloat16 must not be kept in autocast's cache: a replay would use them for ever.
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=pixels.is_cuda, cache_enabled=False):
            _, margin, reconstruction = _forward(self.model, pixels, present, self.config)
        return margin, reconstruction


class Trainer:
    """A run in progress: model, optimiser, and how far they have come."""

    def __init__(
        self,
        run: Path,
        config: RunConfig,
        device: torch.device,
        session: Progress,
        start_weights: Path | None = None,
    ):
        """Start a run, or go on from its newest checkpoint.

        Args:
            run: the run's folder; its config.json has been written.
            config: the run's configuration.
            device: where to train.
            session: hardware, command and commit of this session; its counts are not read.
            start_weights: a checkpoint of another run to begin with, instead of random weights.
        """
        self.run, self.config, self.device = run, config, device
        torch.manual_seed(config.seed)
        model = CapsNet(config.model)
        newest = checkpoint.newest_checkpoint(run)
        self.model = checkpoint.load_model(run, newest, device) if newest else model.to(device)
        if start_weights and not newest:
            checkpoint.load_weights(self.model, start_weights)
        self._learn = Step(self.model, config.loss, config.optimiser.learning_rate)
        self.optimiser = self._learn.optimiser
        self.progress = session
        self.interrupted = False  # by a signal
        if newest:
            checkpoint.load_optimiser(newest, self.model, self.optimiser)
            self.progress = checkpoint.read_progress(newest).resumed_by(session)

    def fit(self, train: Images, validation: Images, limits: Limits) -> bool:
        """Train to the last epoch, or until a limit or a signal stops it; either way leave a checkpoint.

        Returns:
            Whether the run is finished.

        Raises:
            TrainingDivergedError: the loss or a weight is not finite.
        """
        train, validation = train.to(self.device), validation.to(self.device)
        per_epoch = steps_per_epoch(self.config.optimiser, len(train))
        last = per_epoch * self.config.optimiser.epochs
        started = saved = time.monotonic()
        with _Log(self.run, self.progress.step) as log, _stop_on_signal() as stop, self._bar(last) as bar:
            losses: list[Tensor] = []
            while self.progress.step < last and not stop:
                before = time.monotonic()
                losses.append(self._step(train, per_epoch))
                self._count_step(per_epoch, time.monotonic() - before)
                bar.update(self.config.optimiser.batch_size)
                step, now = self.progress.step, time.monotonic()
                epoch_ends = step % per_epoch == 0
                out_of_time = limits.max_minutes is not None and now - started > 60 * limits.max_minutes
                checkpoint_due = now - saved > 60 * limits.checkpoint_minutes
                if step % LOG_EVERY == 0 or epoch_ends or out_of_time or checkpoint_due or stop:
                    self._log_losses(losses, per_epoch, log, bar)
                    losses = []
                if epoch_ends:
                    self._validate(validation, log, bar)
                if epoch_ends or checkpoint_due:
                    self.save()
                    saved = now
                if out_of_time:
                    break
            if losses:
                self._log_losses(losses, per_epoch, log, bar)
            self.interrupted = bool(stop)
        if not checkpoint.checkpoint_at(self.run, self.progress.step).exists():
            self.save()
        return self.progress.step >= last

    def save(self) -> Path:
        """Write a checkpoint of this moment.

        Raises:
            TrainingDivergedError: a weight is not finite.
        """
        try:
            return checkpoint.save(self.run, self.model, self.optimiser, self.progress)
        except checkpoint.NotFiniteError as error:
            raise self._diverged(str(error)) from None

    def _step(self, train: Images, per_epoch: int) -> Tensor:
        """One optimiser step; returns margin and reconstruction loss, [2], on the device."""
        step = self.progress.step
        batch = train[self._batch_index(len(train), per_epoch)]
        generator = torch.Generator(self.device).manual_seed(_mix(self.config.seed, step))
        data = self.config.data
        pixels = to_pixels(random_shift(batch.pixels, data.max_shift_pixels, generator))
        present = F.one_hot(batch.labels, self.config.model.classes).float()
        if data.blank_share:
            pixels, present = blank_some(pixels, present, data.blank_share, generator)
        return self._learn(pixels, present, learning_rate(self.config.optimiser, step, per_epoch))

    def _batch_index(self, images: int, per_epoch: int) -> Tensor:
        """Which images this step trains on: each epoch goes through its own permutation."""
        epoch, within = divmod(self.progress.step, per_epoch)
        if within == 0 or not hasattr(self, "_order"):
            generator = torch.Generator().manual_seed(_mix(self.config.seed, -1 - epoch))
            self._order = torch.randperm(images, generator=generator).to(self.device)
        size = self.config.optimiser.batch_size
        return self._order[within * size : (within + 1) * size]

    def _count_step(self, per_epoch: int, seconds: float) -> None:
        step = self.progress.step + 1
        spent = self.progress.train_seconds + seconds
        self.progress = replace(self.progress, step=step, epochs=step / per_epoch, train_seconds=spent)

    def _log_losses(self, losses: list[Tensor], per_epoch: int, log: "_Log", bar: "tqdm[Any]") -> None:
        """Fetch the losses since the last time; stop the run if one of them is not finite."""
        fetched = torch.stack(losses).double()  # [steps, 2]
        first = self.progress.step - len(losses) + 1
        finite = fetched.isfinite().all(dim=1)
        if not finite.all():
            raise self._diverged(f"loss is not finite at step {first + int((~finite).int().argmax())}")
        margin, reconstruction = fetched.mean(dim=0).tolist()
        total = margin + self.config.loss.reconstruction_weight * reconstruction
        rate = learning_rate(self.config.optimiser, self.progress.step - 1, per_epoch)
        log.write(
            self.progress,
            "train",
            loss=total,
            margin_loss=margin,
            reconstruction_loss=reconstruction,
            learning_rate=rate,
        )
        bar.set_postfix(loss=f"{total:.4f}")

    def _diverged(self, what: str) -> TrainingDivergedError:
        good = checkpoint.newest_checkpoint(self.run)
        where = f"the last good checkpoint is {good}" if good else "there is no checkpoint before it"
        return TrainingDivergedError(f"{what}; {where}. Try a lower learning rate or another seed.")

    def _validate(self, validation: Images, log: "_Log", bar: "tqdm[Any]") -> None:
        found = evaluate(self.model, validation, self.config.loss)
        best = self.progress.best_error_percent
        if best is None or found.error_percent <= best:
            self.progress = replace(
                self.progress, best_step=self.progress.step, best_error_percent=found.error_percent
            )
        log.write(self.progress, "validation", **asdict(found), error_percent=found.error_percent)
        bar.write(f"epoch {self.progress.epochs:g}: validation error {found.error_percent:.2f} %")

    def _bar(self, last: int) -> "tqdm[Any]":
        """Progress in images, with rate and remaining time."""
        size = self.config.optimiser.batch_size
        done = self.progress.step * size
        return tqdm(total=last * size, initial=done, unit="image", unit_scale=True, smoothing=0.05)


def _forward(
    model: CapsNet, pixels: Tensor, present: Tensor, config: LossConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Class capsules [B, J, D], margin and reconstruction loss; `present` [B, J] masks the decoder."""
    v = model(pixels)
    margin = margin_loss(lengths(v), present, config)
    if model.decoder is None:
        return v, margin, torch.zeros_like(margin)
    reconstruction = model.decoder(v, present).float()
    return v, margin, reconstruction_loss(reconstruction, pixels)


def _mix(seed: int, index: int) -> int:
    """A generator seed for one step or epoch of a run; distinct for distinct arguments in practice."""
    return (seed * 1_000_003 + index) % 2**63


class _Log:
    """`log.jsonl` and TensorBoard, in step with each other."""

    def __init__(self, run: Path, step: int):
        self.path = run / "log.jsonl"
        _drop_rows_after(self.path, step)
        self.board = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def __enter__(self) -> "_Log":
        self.file = self.path.open("a")
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.board.close()

    def write(self, progress: Progress, kind: str, **values: float) -> None:
        row = {"kind": kind, "step": progress.step, "epoch": round(progress.epochs, 4)}
        row |= {"train_seconds": round(progress.train_seconds, 1), **values}
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        for name, value in values.items():
            self.board.add_scalar(f"{kind}/{name}", value, progress.step)


def _drop_rows_after(path: Path, step: int) -> None:
    """Forget what a killed session logged beyond the checkpoint that the run goes on from."""
    if path.exists():
        whole = path.read_text().splitlines(keepends=True)
        rows = [row for row in whole if row.endswith("\n") and json.loads(row)["step"] <= step]
        checkpoint.write_atomically(path, "".join(rows))


@contextmanager
def _stop_on_signal() -> Iterator[list[int]]:
    """A list that is empty until SIGINT or SIGTERM arrives; a second one interrupts at once."""
    received: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, previous[signal.Signals(number)])

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
