"""One optimizer step."""

# B batch, K objects per image, C channels, H and W height and width, J classes

import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn

from training.config import LossConfig
from training.data.batches import Batch
from training.fit.distributed import ALONE, Processes
from training.loss.objective import compute_losses, total_loss
from training.models.baselines import BaselineCnn
from training.models.build import Network
from training.models.cpu.bfloat16_convolution import has_bfloat16_instructions
from training.models.cpu.convolution import train_in_bfloat16

logger = logging.getLogger(__name__)


class TrainStep:
    """An optimizer step: forward, backward, Adam; it never waits for a GPU.

    Convolutions compute in bfloat16, and on CUDA and in a CNN fully connected layers, too; on a CPU only if
    it has instructions for that, and of a CapsNet only those that gain by it. On CUDA both passes are
    captured in CUDA graphs at the first step: there are some hundred short kernels in them, and launching
    these one by one can take longer than running them.
    """

    def __init__(
        self,
        model: Network,
        config: LossConfig,
        learning_rate: float,
        weight_decay: float = 0.0,
        graphs: bool = True,
        processes: Processes = ALONE,
    ):
        """Prepare the network for what the device does best, and start Adam.

        Args:
            model: on the device where it is trained.
            config: of the losses.
            learning_rate: until a step says otherwise.
            weight_decay: times half the squared weights is part of the loss.
            graphs: False launches the kernels one by one on CUDA, too.
            processes: learn together, each from its part of a batch.
        """
        on_cuda = next(model.parameters()).is_cuda
        # All processes alike: they refuse weights that are laid out otherwise than the first one's.
        autocast = on_cuda or all(processes.of_all(faster_under_autocast(model)))
        if autocast:
            lay_channels_last(model)
        else:
            train_in_bfloat16(model)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.Adam(trained, lr=learning_rate, weight_decay=weight_decay, fused=True)
        self._model, self._config = model, config
        self._losses: Callable[..., tuple[Tensor, Tensor]] = processes.averaging(
            _Losses(model, config, autocast)
        )
        # With several processes, a graph would have to include the exchange of gradients.
        self._capture_next = graphs and on_cuda and processes.count == 1

    def __call__(self, batch: Batch, learning_rate: float, spread_margin: float | None = None) -> Tensor:
        """Train on a batch.

        Args:
            batch: as large as that of all steps.
            learning_rate: of this step.
            spread_margin: of spread loss in this step; None: that of the end of training.

        Returns:
            Classification and reconstruction loss, [2], on the device.
        """
        if spread_margin is None:
            spread_margin = self._config.spread_margins[1]
        margin = batch.pixels.new_full((), spread_margin)  # a tensor: graphs replay any other number
        changes = () if batch.brightness_contrast is None else (batch.brightness_contrast,)
        shown = (batch.pixels, batch.targets, batch.masks, batch.objects, *changes, margin)
        if self._capture_next:
            self._capture(shown)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        # Not to zeros: what a replay leaves in .grad is its own buffer, to which nothing may be added.
        self.optimizer.zero_grad(set_to_none=True)
        classification, reconstruction = self._losses(*shown)
        total_loss(classification, reconstruction, self._config).backward()
        self.optimizer.step()
        return torch.stack([classification, reconstruction]).detach()

    def _capture(self, shown: tuple[Tensor, ...]) -> None:
        """Replace the losses by a replay of their kernels; if capturing fails, log it and go on without.

        Before capturing, torch runs them a few times; what follows each batch is then set back.
        """
        self._capture_next = False
        # The graphs keep the gradient nodes of the stream that they were captured on; that is intended.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        sample = tuple(tensor.clone() for tensor in shown)
        device = shown[0].device
        generators = [device] if device.type == "cuda" else []  # besides the CPU's
        followers = list(self._model.buffers())
        before = [buffer.clone() for buffer in followers]
        try:
            with torch.random.fork_rng(generators):  # dropout draws as if nothing had been captured
                self._losses = torch.cuda.make_graphed_callables(  # type: ignore[assignment]  # the same module
                    self._losses, sample
                )
        except RuntimeError as error:
            logger.warning("no CUDA graph could be captured, steps are launched one by one: %s", error)
        for buffer, value in zip(followers, before, strict=True):
            buffer.copy_(value)


def faster_under_autocast(model: Network) -> bool:
    """Whether the network is trained fastest under autocast to bfloat16, channels last, on this CPU.

    That is so for CNNs, if the CPU has instructions for bfloat16. The algorithms for capsules on CPUs need
    float32, and CpuConvolution is made to go with them.
    """
    return isinstance(model, BaselineCnn) and has_bfloat16_instructions()


def lay_channels_last(model: nn.Module) -> None:
    """Lay the weights of convolutions out in memory as bfloat16 is fastest; all others stay as they are."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it


class _Losses(nn.Module):
    """The losses of a batch, under autocast to bfloat16 or not; a module, as CUDA graphs require."""

    def __init__(self, model: Network, config: LossConfig, autocast: bool):
        super().__init__()
        self.model, self.config, self.autocast = model, config, autocast

    def forward(self, *shown: Tensor) -> tuple[Tensor, Tensor]:
        *images, margin = shown
        batch = Batch(*images)
        device = batch.pixels.device.type
        # Weights cast to bfloat16 must not be kept in autocast's cache: a replay would use them forever.
        with torch.autocast(device, torch.bfloat16, enabled=self.autocast, cache_enabled=False):
            found = compute_losses(self.model, batch, self.config, margin)
        return found.classification, found.reconstruction
