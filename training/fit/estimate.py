"""Estimates how long a run takes, from a few steps of a throw-away network."""

import time

import torch

from training.config import RunConfig
from training.data.batches import Batches
from training.data.seeding import generator_for
from training.fit.schedule import steps_per_epoch
from training.fit.step import TrainStep
from training.models.build import build

TIMED = 2  # steps, the faster counts; one before them compiles and allocates


def hours_of_epoch(config: RunConfig, train: Batches) -> float:
    """Time of a pass over the training images on a CPU, without validation; it takes a few steps to find out.

    Args:
        config: of the run.
        train: what it learns from, on the CPU.
    """
    rate, size = config.optimizer.learning_rate, min(config.optimizer.batch_size, len(train))
    learn, seconds = TrainStep(build(config.model), config.loss, rate), []
    for step in range(1 + TIMED):
        batch = train.random(torch.arange(size), generator_for(config.seed, step))
        begun = time.perf_counter()
        learn(batch, rate)
        seconds.append(time.perf_counter() - begun)
    return min(seconds[1:]) * steps_per_epoch(config.optimizer, len(train)) / 3600
