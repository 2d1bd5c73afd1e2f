"""An exponential moving average of a network's weights, which is often better than the last ones.

Polyak and Juditsky 1992, https://doi.org/10.1137/0330046; with the warm-up of TensorFlow's
ExponentialMovingAverage.
"""

from copy import deepcopy

from torch.optim.swa_utils import get_ema_multi_avg_fn

from training.models.build import Network


class ExponentialMovingAverage:
    """The average, as a network of its own; nothing in an update waits for a GPU.

    Attributes:
        model: has the averaged weights, where the trained network has its own.
    """

    def __init__(self, trained: Network, decay: float):
        """Begin with the weights as they are.

        Args:
            trained: on the device and in the memory order in which it is trained.
            decay: how much of the average a step keeps in the long run, from 0 to below 1.
        """
        self.model: Network = deepcopy(trained).requires_grad_(False)
        self._decay = decay

    def update(self, trained: Network, step: int) -> None:
        """Take in the weights that the step with this index, from 0, has left, and copy the buffers.

        The first steps keep less, (1 + step) / (10 + step), so that the random weights that training began
        with are soon forgotten.
        """
        kept = min(self._decay, (1 + step) / (10 + step))
        take_in = get_ema_multi_avg_fn(kept)
        take_in(list(self.model.parameters()), list(trained.parameters()), step)
        for own, its in zip(self.model.buffers(), trained.buffers(), strict=True):
            own.copy_(its)
