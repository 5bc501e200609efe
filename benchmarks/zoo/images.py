"""Images and their measurement: kornia, torchkbnufft."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.zoo.entry import Subject, constant, entry, normal, uniform
from benchmarks.zoo.mistakes import (
    gradient_conjugated,
    gradient_rolled,
    gradient_scaled,
    gradient_transposed,
    number_stopped,
    output_rolled,
    output_scaled,
    output_stopped,
    stopped,
)


@entry("kornia", output_stopped(70))
def tfeat_descriptor() -> Subject:
    from kornia.feature import TFeat

    return TFeat(pretrained=False).double().eval(), (normal(1, 1, 32, 32),)


@entry("kornia", gradient_rolled(0))
def sosnet_descriptor() -> Subject:
    from kornia.feature import SOSNet

    return SOSNet(pretrained=False).double().eval(), (normal(1, 1, 32, 32),)


@entry("kornia", gradient_scaled(1.02))
def sift_descriptor() -> Subject:
    from kornia.feature import SIFTDescriptor

    return SIFTDescriptor(16).double(), (uniform(1, 1, 16, 16),)


@entry("kornia", output_scaled(0.9))
def structural_similarity() -> Subject:
    from kornia.losses import ssim_loss

    return (lambda a, b: ssim_loss(a, b, 5, reduction="none")), (
        uniform(1, 1, 12, 12),
        uniform(1, 1, 12, 12, seed=1),
    )


@entry("kornia", stopped(1))
def perspective_warp() -> Subject:
    from kornia.geometry.transform import warp_perspective

    def function(image: Tensor, matrix: Tensor) -> Tensor:
        return warp_perspective(image, matrix, (11, 13), align_corners=True)

    matrix = torch.tensor([[[0.93, 0.061, 0.3137], [-0.043, 0.97, 0.2271], [0.0013, 0.0021, 1.0]]]).double()
    return function, (uniform(1, 2, 10, 12), matrix.requires_grad_())


@entry("kornia", gradient_transposed(0))
def bilateral_blur() -> Subject:
    from kornia.filters import bilateral_blur as blur

    return (lambda image: blur(image, (3, 3), 0.4, (1.5, 1.5))), (uniform(1, 1, 14, 14),)


@entry("kornia", output_rolled())
def colours_to_lab() -> Subject:
    from kornia.color import rgb_to_lab

    return (lambda image: rgb_to_lab(image)[0]), (uniform(1, 3, 9, 9, low=0.1, high=0.9),)


@entry("kornia", number_stopped(0, 40))
def gradients_of_an_image() -> Subject:
    from kornia.filters import sobel

    return (lambda image: sobel(image)), (uniform(1, 2, 12, 12),)


def _trajectory() -> Tensor:
    """Where the spectrum is sampled: at random frequencies."""
    return torch.pi * torch.tanh(constant(2, 48))


@entry("torchkbnufft", gradient_conjugated(0))
def nonuniform_fourier_transform() -> Subject:
    from torchkbnufft import KbNufft

    transform, frequencies = KbNufft(im_size=(8, 8), dtype=torch.complex128), _trajectory()
    return (lambda image: transform(image, frequencies)), (normal(1, 1, 8, 8, dtype=torch.complex128),)


@entry("torchkbnufft", output_scaled(1.5))
def image_of_a_spectrum() -> Subject:
    from torchkbnufft import KbNufftAdjoint

    transform, frequencies = KbNufftAdjoint(im_size=(8, 8), dtype=torch.complex128), _trajectory()
    return (lambda data: transform(data, frequencies).abs().square()), (
        normal(1, 1, 48, dtype=torch.complex128),
    )
