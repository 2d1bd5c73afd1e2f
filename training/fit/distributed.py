"""The processes that train one network together, one on each GPU, or several on CPUs.

torchrun starts them and gives each its rank. They make the same random choices; each trains on its part of
every batch, and they average their gradients. So all have the same weights, which up to rounding are those of
a single process. The first one writes the log and the checkpoints. Dropout is random in each process, so
that with it the result is the same in distribution only. With `calibration_momentum`, lambda and budgets of
matrix capsules follow the first process's part of each batch, not all of it.
"""

import gc
import importlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process among those that train together; by default, the only one.

    Attributes:
        rank: of this one, from 0.
        count: of all.
        agent: the process of torchrun that started this one; None without torchrun.
    """

    rank: int = 0
    count: int = 1
    agent: int | None = None

    @property
    def first(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    @property
    def orphaned(self) -> bool:
        """Whether the torchrun that started this process is gone; another will start one in its place."""
        return self.agent is not None and os.getppid() != self.agent

    def check_batch(self, images: int) -> None:
        """Refuse a batch size that the processes cannot share evenly.

        Raises:
            ValueError: there is a remainder.
        """
        if images % self.count:
            raise ValueError(
                f"a batch of {images} images cannot be shared evenly by {self.count} processes; "
                "start as many as divide it"
            )

    def part(self, images: int) -> slice:
        """Which images of a batch of this size this process learns from."""
        size = images // self.count
        return slice(self.rank * size, (self.rank + 1) * size)

    def averaging(self, losses: nn.Module) -> nn.Module:
        """The module of losses, with gradients averaged over all processes."""
        return DistributedDataParallel(losses) if self.count > 1 else losses

    def mean(self, values: Tensor) -> Tensor:
        """The mean over all processes, on the values' device; overwrites the values."""
        if self.count > 1:
            distributed.all_reduce(values)
            values = values / self.count
        return values

    def any_of(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether any process has raised it; does not wait for a GPU."""
        if self.count == 1:
            return flags
        raised = torch.tensor(flags, dtype=torch.int32)  # on the CPU
        distributed.all_reduce(raised, distributed.ReduceOp.MAX)
        return tuple(flag > 0 for flag in raised.tolist())

    def share_first(self, tensors: Iterable[Tensor]) -> None:
        """Give the tensors, in place, the first process's values."""
        if self.count > 1:
            for tensor in tensors:
                distributed.broadcast(tensor, 0)

    def wait_for_all(self) -> None:
        """Wait until all processes have come here."""
        self.any_of(False)

    def of(self, value: T, rank: int = 0) -> T:
        """The value of the process of this rank, by default of the first."""
        if self.count == 1:
            return value
        values = [value]
        distributed.broadcast_object_list(values, rank, device=torch.device("cpu"))
        return values[0]

    def of_all(self, value: T) -> list[T]:
        """The values of all processes, by rank."""
        if self.count == 1:
            return [value]
        values: list[T] = [value] * self.count
        distributed.all_gather_object(values, value)
        return values


ALONE = Processes()


def started_by_torchrun() -> bool:
    """Whether torchrun has started this process, and starts it again when it or another one dies."""
    return distributed.is_torchelastic_launched()


@contextmanager
def together(device: torch.device) -> Iterator[Processes]:
    """Join the processes that torchrun has started, on one or several machines.

    What has averaged gradients must not outlive it: Gloo's threads end with the last reference to the group,
    and PyTorch aborts a process (SIGABRT) in which one of them is busy while Python ends. After an error,
    this may still take the place of the exit status.

    Args:
        device: where this one trains.

    Raises:
        ConnectionError: another process has ended, or cannot be reached.
    """
    if not started_by_torchrun():
        yield ALONE
        return
    agent = os.getppid()
    if os.environ["WORLD_SIZE"] == "1":
        yield Processes(agent=agent)
        return
    # Averaging would import it later: then the defaults of its functions are the group, and hold it for good.
    importlib.import_module("torch.distributed.nn")
    try:
        distributed.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        yield Processes(distributed.get_rank(), distributed.get_world_size(), agent)
    except RuntimeError as error:
        if isinstance(error, distributed.DistError) or "gloo" in str(error):
            cause = str(error).partition(". This is typically")[0]  # what follows is gloo's advice
            raise ConnectionError(f"the connection to another process is lost: {cause}") from error
        raise
    # Not after an error: the others would wait for this process, and torchrun ends them when it exits.
    distributed.destroy_process_group()
    gc.collect()  # modules refer to each other in circles


def own_device(device: torch.device) -> torch.device:
    """This process's GPU if there are several; all share a CPU.

    Raises:
        ValueError: there are more processes on this machine than GPUs.
    """
    if device.type != "cuda" or not started_by_torchrun():
        return device
    rank, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if rank >= there:
        asked = os.environ["LOCAL_WORLD_SIZE"]
        raise ValueError(
            f"torchrun started {asked} processes on this machine, which has {there} GPUs: "
            f"give it --nproc-per-node {there}, or this command --device cpu"
        )
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)
