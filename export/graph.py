"""What the graphs compute: thin wrappers around a trained model, named inputs in, named outputs out."""

# N batch, J classes, D class pose, C image channels, H and W image height and width

from torch import Tensor, nn

from training.models.capsnet import CapsNet
from training.models.decoder import Decoder
from training.models.graph_names import name_in_graph
from training.models.matrix_capsnet import MatrixCapsNet
from training.models.matrix_capsules import MATRIX_SIDE, POSE

CapsuleNetwork = CapsNet | MatrixCapsNet


def pose_shape(model: CapsuleNetwork) -> tuple[int, ...]:
    """What the D numbers of a class capsule's pose are, row by row."""
    if isinstance(model, CapsNet):
        return (model.config.class_dim,)
    return (POSE,) if model.config.vector_poses else (MATRIX_SIDE, MATRIX_SIDE)


class EncoderGraph(nn.Module):
    """Pixels in, probabilities and poses out."""

    input_names = ("pixels",)
    output_names = ("probabilities", "poses")

    def __init__(self, model: CapsuleNetwork):
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Images [N, H, W, C], float32, 0 to 1, to probabilities [N, J] and poses [N, J, D]."""
        channels_first = pixels.permute(0, 3, 1, 2)
        name_in_graph(channels_first=channels_first)
        poses, probabilities = self.model.classify(channels_first)
        return probabilities, poses


class DecoderGraph(nn.Module):
    """Poses and a mask in, pixels out."""

    input_names = ("poses", "mask")
    output_names = ("reconstruction",)

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, poses: Tensor, mask: Tensor) -> Tensor:
        """Poses [N, J, D] and mask [N, J], 1 for the capsule to draw, to images [N, H, W, C], 0 to 1."""
        channels_first = self.decoder(poses, mask)
        reconstruction = channels_first.permute(0, 2, 3, 1)
        return reconstruction
