"""The weights that the official code of *Dynamic Routing Between Capsules* begins with.

https://github.com/Sarasra/models/tree/master/research/capsules, models/layers/variables.py and layers.py.
"""

from torch import nn

WEIGHT_STD = 0.1  # before the truncation
CONV1_WEIGHT_STD = 0.05
CUT_AT = 2  # standard deviations: what is beyond is drawn again, as TensorFlow's truncated normal does
BIAS = 0.1


def initialize_officially(model: nn.Module) -> None:
    """Give a CapsNet new weights, in place, from torch's global generator.

    Weights are truncated normal, those of the decoder too; every bias is 0.1, that of the class capsules
    too. Learned priors, which the official code has none of, stay as they are.

    Args:
        model: a `CapsNet`; its first weights are those of the convolution that sees the pixels.
    """
    first = next(name for name, _ in model.named_parameters())
    for name, parameter in model.named_parameters():
        kind = name.rpartition(".")[2]
        if kind == "bias":
            nn.init.constant_(parameter, BIAS)
        elif kind == "weight":
            std = CONV1_WEIGHT_STD if name == first else WEIGHT_STD
            nn.init.trunc_normal_(parameter, std=std, a=-CUT_AT * std, b=CUT_AT * std)
