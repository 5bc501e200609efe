"""Equations solved on the way: optimization layers, fixed points, factorizations, NumPy inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.zoo.entry import Subject, constant, entry, normal
from benchmarks.zoo.mistakes import (
    gradient_conjugated,
    gradient_rolled,
    gradient_scaled,
    gradient_transposed,
    inside,
    keep,
    number_stopped,
    output_rolled,
    output_stopped,
    part_stopped,
    stopped,
)

Hold = Callable[[Tensor], Tensor]


@entry("qpth", gradient_scaled(-1.0, 1))
def quadratic_program() -> Subject:
    from qpth.qp import QPFunction

    solve, nothing = QPFunction(verbose=-1, eps=1e-13), torch.empty(0, dtype=torch.float64)

    def function(factor: Tensor, linear: Tensor, sides: Tensor, bounds: Tensor) -> Tensor:
        matrix = factor @ factor.mT + torch.eye(6, dtype=factor.dtype)
        # One for each problem: of what problems share, qpth gives the mean of the gradients, not the sum.
        return solve(matrix.expand(4, 6, 6), linear, sides.expand(4, 5, 6), bounds, nothing, nothing)

    bounds = (1 + constant(4, 5, seed=3).abs()).requires_grad_()
    return function, (normal(6, 6), normal(4, 6, seed=1), normal(5, 6, seed=2), bounds)


@entry("cvxpylayers", gradient_rolled(1), atol=1e-4, eps=1e-5)
def convex_program() -> Subject:
    import cvxpy
    from cvxpylayers.torch import CvxpyLayer

    x = cvxpy.Variable(5)
    matrix, target = cvxpy.Parameter((7, 5)), cvxpy.Parameter(7)
    objective = cvxpy.Minimize(cvxpy.sum_squares(matrix @ x - target) + 0.1 * cvxpy.norm1(x))
    layer = CvxpyLayer(cvxpy.Problem(objective, [x >= -1]), parameters=[matrix, target], variables=[x])
    options = {"eps": 1e-11, "max_iters": 100_000}
    return (lambda a, b: layer(a, b, solver_args=options)[0]), (normal(7, 5), normal(7, seed=1))


class _FixedPoint(torch.autograd.Function):
    """z = tanh(w z + x), and its backward by the implicit function theorem."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, tolerance: float, transposed: bool) -> Tensor:
        z = torch.zeros_like(x)
        while (new := torch.tanh(z @ w.mT + x)).sub(z).abs().max() > tolerance:
            z = new
        ctx.save_for_backward(z, w)
        ctx.transposed = transposed
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        z, w = ctx.saved_tensors
        slope = 1 - z * z
        matrices = torch.eye(len(w), dtype=w.dtype) - slope[:, :, None] * w
        matrices = matrices.mT if ctx.transposed else matrices
        adjoint = torch.linalg.solve(matrices, grad) * slope
        return adjoint, adjoint.mT @ z, None, None


def _equilibrium(tolerance: float) -> Callable[..., Tensor]:
    def function(x: Tensor, w: Tensor, hold: Hold = keep) -> Tensor:
        return _FixedPoint.apply(x, w, tolerance, hold is keep)

    return function


@entry("own", inside)
def implicit_layer() -> Subject:
    return _equilibrium(1e-13), (normal(6, 12), normal(12, 12, seed=1, scale=0.15))


@entry("own", inside, eps=1e-4, atol=1e-2)
def implicit_layer_with_noise() -> Subject:
    return _equilibrium(1e-8), (normal(6, 12), normal(12, 12, seed=1, scale=0.15))


@entry("own", number_stopped(1, 9), atol=1e-4)
def conjugate_gradients_inside() -> Subject:
    def function(factor: Tensor, right: Tensor) -> Tensor:
        matrix = factor @ factor.mT + 5 * torch.eye(len(right), dtype=right.dtype)
        x, residual = torch.zeros_like(right), right
        direction, square = residual, residual @ residual
        while square.item() > 1e-20:
            image = matrix @ direction
            step = square / (direction @ image)
            x, residual = x + step * direction, residual - step * image
            direction, square = residual + (residual @ residual) / square * direction, residual @ residual
        return x

    return function, (normal(20, 20), normal(20, seed=1))


@entry("own", inside)
def newton_roots() -> Subject:
    """Kepler's equation, to 1e-8, and one more step that carries the derivative."""

    def function(anomaly: Tensor, eccentricity: Tensor, hold: Hold = keep) -> Tensor:
        with torch.no_grad():
            angle = anomaly.clone()
            while True:
                rest = angle - eccentricity * torch.sin(angle) - anomaly
                if rest.abs().max() < 1e-8:
                    break
                angle = angle - rest / (1 - eccentricity * torch.cos(angle))
        rest = angle - hold(eccentricity) * torch.sin(angle) - anomaly
        return angle - rest / (1 - eccentricity * torch.cos(angle)).detach()

    eccentricity = (0.8 * torch.sigmoid(constant(1))).requires_grad_()
    return function, (normal(80, scale=2.0), eccentricity)


class _Tridiagonal(torch.autograd.Function):
    """The solution of a tridiagonal system, by NumPy."""

    @staticmethod
    def forward(ctx: Any, diagonal: Tensor, side: Tensor, right: Tensor) -> Tensor:
        matrix = np.diag(diagonal.numpy()) + np.diag(side.numpy(), 1) + np.diag(side.numpy(), -1)
        solution = torch.from_numpy(np.linalg.solve(matrix, right.numpy()))
        ctx.matrix = matrix
        ctx.save_for_backward(solution)
        return solution

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        adjoint = torch.from_numpy(np.linalg.solve(ctx.matrix, grad.numpy()))
        return -adjoint * x, -(adjoint[1:] * x[:-1] + adjoint[:-1] * x[1:]), adjoint


@entry("own", gradient_rolled(1))
def tridiagonal_system_in_numpy() -> Subject:
    def function(diagonal: Tensor, side: Tensor, right: Tensor) -> Tensor:
        return _Tridiagonal.apply(3 + diagonal * diagonal, side, right)

    return function, (normal(60), normal(59, seed=1, scale=0.5), normal(60, seed=2))


class _Smoother:
    """Smooths a signal; the factor of its matrix is kept for the last weight that was asked for."""

    def __init__(self, size: int) -> None:
        difference = torch.diff(torch.eye(size, dtype=torch.float64), n=2, dim=0)
        self.roughness = difference.mT @ difference
        self.factors: dict[float, Tensor] = {}

    def __call__(self, signal: Tensor, log_weight: Tensor) -> Tensor:
        weight = log_weight.exp()
        system = torch.eye(len(signal), dtype=signal.dtype) + weight * self.roughness
        key = weight.item()
        if key not in self.factors:
            self.factors[key] = torch.linalg.cholesky(system.detach())
        factor = self.factors[key]
        smooth = torch.cholesky_solve(signal[:, None], factor)
        # The second term is zero; it has the derivative by the weight, which the kept factor lacks.
        return (smooth - torch.cholesky_solve((system - system.detach()) @ smooth.detach(), factor))[:, 0]


@entry("own", stopped(1))
def smoother_that_memoises() -> Subject:
    return _Smoother(100), (normal(100), normal(seed=1))


@entry("own", gradient_transposed(0))
def eigenvalues_and_projector() -> Subject:
    weights = constant(14, 14).abs()

    def function(matrix: Tensor) -> tuple[Tensor, Tensor]:
        weighted = matrix * weights
        values, vectors = torch.linalg.eigh((weighted + weighted.mT) / 2)
        return values, vectors[:, -3:] @ vectors[:, -3:].mT

    return function, (normal(14, 14),)


@entry("own", output_stopped(2))
def singular_values_and_polar_factor() -> Subject:
    def function(matrix: Tensor) -> tuple[Tensor, Tensor]:
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
        return s, u @ vh

    return function, (normal(15, 9),)


@entry("own", part_stopped(1, 0.1))
def least_squares_by_cholesky() -> Subject:
    def function(design: Tensor, targets: Tensor) -> Tensor:
        normal_matrix = design.mT @ design + 0.1 * torch.eye(design.shape[1], dtype=design.dtype)
        return torch.cholesky_solve(design.mT @ targets, torch.linalg.cholesky(normal_matrix))

    return function, (normal(30, 6), normal(30, 3, seed=1))


@entry("own", gradient_conjugated(1))
def spectral_filter() -> Subject:
    def function(signal: Tensor, gain: Tensor) -> Tensor:
        return torch.fft.ifft(torch.fft.fft(signal) * torch.tanh(gain))

    return function, (normal(3, 32, dtype=torch.complex128), normal(32, seed=1, dtype=torch.complex128))


@entry("own", output_rolled())
def spectrogram() -> Subject:
    window = torch.hann_window(32, dtype=torch.float64)

    def function(signal: Tensor) -> Tensor:
        return torch.stft(signal, 32, 16, window=window, return_complex=True).abs().square().log1p()

    return function, (normal(256),)
