"""The one place where the networks of the papers get their faster forms for training.

A form is a subclass with the same parameters and, up to rounding, the same results. It computes otherwise
only where that pays, as `trained_on_cpu` says for CPUs, so that a network may have it on any device.
"""

from torch import nn

from training.models.capsules import ClassCapsules, RoutingByAgreement
from training.models.convolution import Convolution
from training.models.cpu.class_capsules import CpuRouting
from training.models.cpu.convolution import CpuConvolution
from training.models.cpu.primary_capsules import CpuPrimaryMatrixCapsules
from training.models.cuda.class_capsules import CudaClassCapsules
from training.models.fused_matrix_capsules import FusedMatrixCapsules
from training.models.matrix_capsules import MatrixCapsules, PrimaryMatrixCapsules

FORMS: dict[type[nn.Module], type[nn.Module]] = {
    Convolution: CpuConvolution,
    ClassCapsules: CudaClassCapsules,  # and on a CPU CpuClassCapsules
    RoutingByAgreement: CpuRouting,
    MatrixCapsules: FusedMatrixCapsules,
    PrimaryMatrixCapsules: CpuPrimaryMatrixCapsules,
}


def use_training_forms(network: nn.Module) -> None:
    """Give every layer of a network the form it has in FORMS, if any; its parameters stay where they are."""
    for layer in network.modules():
        if form := FORMS.get(type(layer)):
            layer.__class__ = form
