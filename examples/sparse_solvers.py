"""Sparse derivatives in SciPy's solvers: a reaction, cameras and points, an equation, a constrained chain.

Each function builds a plan once and hands `plan.to_scipy` to a solver, which calls it with NumPy vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.optimize import LinearConstraint, least_squares, minimize, root
from scipy.sparse.linalg import LinearOperator, splu
from torch import Tensor

import covector
from covector.scipy import objective, residuals


def brusselator(side: int, end: float, **changes: Any) -> Any:
    """The Brusselator on a square, two substances that react and diffuse: stiff, so an implicit method."""
    spacing = 1.0 / (side - 1)

    def rate(state: Tensor) -> Tensor:
        u, v = state.reshape(2, side, side)

        def diffusion(w: Tensor) -> Tensor:
            padded = torch.nn.functional.pad(w[None, None], (1, 1, 1, 1), mode="replicate")[0, 0]
            around = padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2]
            return 0.002 * (around - 4 * w) / spacing**2

        reaction = u * u * v
        change = torch.stack([1 + reaction - 4.4 * u + diffusion(u), 3.4 * u - reaction + diffusion(v)])
        return change.reshape(-1)

    grid = torch.linspace(0, 1, side, dtype=torch.float64)
    start = torch.stack([0.5 + grid.expand(side, side), 1 + 5 * grid[:, None].expand(side, side)]).reshape(-1)
    plan = covector.jacobian_plan(rate, start)
    options = {"method": "BDF", "jac": lambda t, y: plan.to_scipy(y), "rtol": 1e-6, "atol": 1e-8}
    return solve_ivp(
        lambda t, y: rate(torch.from_numpy(y)).numpy(), (0.0, end), start.numpy(), **(options | changes)
    )


def adjust_bundle(cameras: int, points: int, seen_by: int, noise: float = 1e-3) -> tuple[Any, float]:
    """Cameras and points from where the points appear: the solution, and the misfit that is left."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    camera = torch.arange(points * seen_by) % cameras
    point = torch.arange(points).repeat_interleave(seen_by)
    # A camera is a rotation vector, a position and a focal length.
    poses = torch.cat(
        [0.1 * draw(cameras, 3), 0.3 * draw(cameras, 3), 1 + 0.1 * draw(cameras, 1).abs()], dim=1
    )
    places = draw(points, 3) + torch.tensor([0.0, 0.0, 6.0], dtype=torch.float64)

    def project(poses: Tensor, places: Tensor) -> Tensor:
        turn, shift, focal = poses[camera].split([3, 3, 1], dim=1)
        seen = places[point] + shift
        # A small rotation, to second order: x + w * x + w * (w * x) / 2.
        once = torch.linalg.cross(turn, seen)
        seen = seen + once + torch.linalg.cross(turn, once) / 2
        return focal * seen[:, :2] / seen[:, 2:]

    observed = project(poses, places) + noise * draw(points * seen_by, 2)

    # The first camera is held fixed, or all could be moved together.
    def misfit(moved: Tensor, places: Tensor) -> Tensor:
        return project(torch.cat([poses[:1], moved]), places) - observed

    guess = poses[1:] + 0.02 * draw(cameras - 1, 7), places + 0.1 * draw(points, 3)
    fit = residuals(misfit, *guess)
    plan = covector.jacobian_plan(misfit, *guess, argnums=(0, 1))
    found = least_squares(fit.fun, fit.x0, jac=plan.to_scipy, method="trf", x_scale="jac")
    return found, float(np.sqrt(np.mean(found.fun**2)))


def stationary(side: int) -> Any:
    """-div grad u = exp(u) on a square, by Newton-Krylov, preconditioned by the factored Jacobian."""

    def equation(u: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(u.reshape(side, side), (1, 1, 1, 1))
        around = padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2]
        return (around.reshape(-1) - 4 * u) * (side + 1) ** 2 + u.exp()

    start = torch.zeros(side * side, dtype=torch.float64)
    factors = splu(covector.jacobian_plan(equation, start).to_scipy(start.numpy()).tocsc())
    preconditioner = LinearOperator((side * side, side * side), factors.solve)
    return root(
        lambda u: equation(torch.from_numpy(u)).numpy(),
        start.numpy(),
        method="krylov",
        options={"jac_options": {"inner_M": preconditioner}, "fatol": 1e-8},
    )


def constrained_chain(size: int) -> Any:
    """The Rosenbrock chain under the condition that its elements have a given sum."""

    def energy(x: Tensor) -> Tensor:
        return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

    start = torch.full((size,), 0.5, dtype=torch.float64)
    problem = objective(energy, start)
    plan = covector.hessian_plan(energy, start)
    return minimize(
        problem.fun,
        problem.x0,
        jac=problem.jac,
        hess=plan.to_scipy,
        method="trust-constr",
        constraints=[LinearConstraint(np.ones((1, size)), 0.75 * size, 0.75 * size)],
        options={"gtol": 1e-7, "maxiter": 500},
    )


if __name__ == "__main__":
    solution = brusselator(32, 2.0)
    print(f"Brusselator: {solution.t.size} steps, {solution.njev} Jacobians, {solution.nlu} factorizations")
    found, spread = adjust_bundle(20, 400, 6)
    print(f"bundle adjustment: {found.x.size} unknowns, {found.njev} Jacobians, residual {spread:.1e}")
    print(f"stationary reaction: residual {np.abs(stationary(60).fun).max():.1e}")
    print(f"constrained chain: {constrained_chain(200).nit} iterations")
