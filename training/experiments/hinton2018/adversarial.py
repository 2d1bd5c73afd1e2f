"""Adversarial examples of one kind: how they are made, and how many networks they mislead."""

# B batch, A aims (classes as targets, or the right one), E epsilons, C channels, H and W height and width

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from training.config import LossConfig
from training.data.batches import Batch
from training.evaluate import attacks
from training.evaluate.evaluation import predict
from training.models.build import Network

MATRIX, CAPSNET, CNN, OTHER_CNN = "matrix capsules", "CapsNet", "CNN", "another CNN"
ATTACKED = (MATRIX, CAPSNET, CNN)
FGSM, BIM = "FGSM", "BIM"
WIDEST, OF_TRAINING = "widest", "of training"


@dataclass(frozen=True)
class Attack:
    """A way to make adversarial examples.

    Attributes:
        name: FGSM or BIM.
        steps: of BIM; FGSM has one.
        targeted: towards each class in turn; else away from the right one.
        epsilons: how much a pixel may change.
        margins: of the loss that is raised: WIDEST, or those that the network was trained with.
    """

    name: str
    steps: int
    targeted: bool
    epsilons: tuple[float, ...]
    margins: str = WIDEST

    def examples(self, model: Network, pixels: Tensor, classes: Tensor, config: LossConfig) -> Tensor:
        """Images [B, C, H, W] as they are at each epsilon, [E, B, C, H, W]; see `evaluate.attacks`.

        `config` is of the loss that the model was trained with.
        """
        if self.margins == WIDEST:
            config = attacks.with_widest_margins(config)
        if self.name == FGSM:  # goes in one direction, whatever epsilon is
            towards = attacks.direction(model, pixels, classes, config, self.targeted)
            return torch.stack([attacks.moved(pixels, towards, epsilon) for epsilon in self.epsilons])
        of_bim = partial(attacks.bim, steps=self.steps, config=config, targeted=self.targeted)
        return torch.stack([of_bim(model, pixels, classes, epsilon) for epsilon in self.epsilons])

    def classes(self, targets: Tensor) -> Tensor:
        """What the loss takes images for: the right class, or every one in turn, int64 [A, B].

        `targets` is 1 for the right class, [B, J].
        """
        if not self.targeted:
            return targets.argmax(dim=1).unsqueeze(0)
        return torch.arange(targets.shape[1], device=targets.device)[:, None].expand(-1, len(targets))


def hits(models: Sequence[Network], batch: Batch, attack: Attack, config: LossConfig) -> Tensor:
    """How many images of a batch each network takes for the class that the attack is about.

    Args:
        models: the first is attacked, all are shown what is made.
        batch: of images.
        attack: untargeted it is about the right class, targeted about every one in turn.
        config: of the loss of the network that is attacked.

    Returns:
        int64 [models, A, E], on the CPU.
    """
    classes = attack.classes(batch.targets)
    counts = torch.zeros(len(models), len(classes), len(attack.epsilons), dtype=torch.int64)
    for a, of_attack in enumerate(classes):
        for e, pixels in enumerate(attack.examples(models[0], batch.pixels, of_attack, config)):
            for m, model in enumerate(models):
                counts[m, a, e] = (answers(model, pixels) == of_attack).sum()
    return counts


@torch.no_grad()
def answers(model: Network, pixels: Tensor) -> Tensor:
    """The class that a network names for each image [B, C, H, W], int64 [B]."""
    return predict(model, pixels).argmax(dim=1)
