"""Things that move: differential equations, stochastic ones, Lie groups, molecules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.entry import Subject, constant, entry, normal
from benchmarks.zoo.mistakes import (
    gradient_rolled,
    gradient_scaled,
    inside,
    keep,
    number_stopped,
    output_rolled,
    output_scaled,
    part_stopped,
    stopped,
)

Hold = Callable[[Tensor], Tensor]


class _Field(nn.Module):
    """The right-hand side of an equation: a small network."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, size)).double()

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.net(y) * torch.cos(t)


@entry("torchdiffeq", gradient_scaled(1.05))
def adaptive_runge_kutta() -> Subject:
    from torchdiffeq import odeint

    field, times = _Field(4, 16), torch.linspace(0, 1, 4, dtype=torch.float64)
    return (lambda y: odeint(field, y, times, rtol=1e-9, atol=1e-10)[1:]), (normal(5, 4),)


@entry("torchdiffeq", part_stopped(0))
def runge_kutta_on_a_grid() -> Subject:
    from torchdiffeq import odeint

    field, times = _Field(6, 32), torch.linspace(0, 1, 11, dtype=torch.float64)
    return (lambda y: odeint(field, y, times, method="rk4")[-1]), (normal(8, 6),)


@entry("torchdiffeq", number_stopped(0, 7), nondet_tol=1e-8)
def adjoint_of_an_equation() -> Subject:
    from torchdiffeq import odeint_adjoint

    field, times = _Field(4, 16), torch.linspace(0, 1, 3, dtype=torch.float64)
    return (lambda y: odeint_adjoint(field, y, times, rtol=1e-9, atol=1e-10)[-1]), (normal(4, 4),)


class _Diffusion(nn.Module):
    """A stochastic equation with diagonal noise."""

    noise_type = "diagonal"
    sde_type = "ito"

    def __init__(self, size: int) -> None:
        super().__init__()
        self.drift = nn.Sequential(nn.Linear(size, 16), nn.Tanh(), nn.Linear(16, size)).double()

    def f(self, t: Tensor, y: Tensor) -> Tensor:
        return self.drift(y)

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        return 0.3 * torch.sigmoid(y)


@entry("torchsde", gradient_rolled(0))
def stochastic_equation() -> Subject:
    import torchsde

    equation, times = _Diffusion(4), torch.linspace(0, 1, 3, dtype=torch.float64)

    def function(y: Tensor) -> Tensor:
        noise = torchsde.BrownianInterval(0.0, 1.0, size=(6, 4), dtype=torch.float64, entropy=5)
        return torchsde.sdeint(equation, y, times, bm=noise, method="milstein", dt=0.05)[-1]

    return function, (normal(6, 4),)


@entry("pypose", gradient_scaled(2.0, 1))
def poses_act_on_points() -> Subject:
    import pypose

    def function(pose: Tensor, points: Tensor) -> Tensor:
        return pypose.se3(pose).Exp().Act(points)

    return function, (normal(12, 6, scale=0.7), normal(12, 3, seed=1))


@entry("pypose", gradient_rolled(1))
def composition_of_poses() -> Subject:
    import pypose

    def function(a: Tensor, b: Tensor) -> Tensor:
        return (pypose.se3(a).Exp() @ pypose.se3(b).Exp().Inv()).Log().tensor()

    return function, (normal(10, 6, scale=0.4), normal(10, 6, seed=1, scale=0.4))


@entry("e3nn", number_stopped(0, 11))
def spherical_harmonics() -> Subject:
    from e3nn import o3

    def function(x: Tensor) -> Tensor:
        return o3.spherical_harmonics([0, 1, 2, 3, 4], x, normalize=True, normalization="component")

    return function, (normal(24, 3),)


@entry("e3nn", output_rolled())
def tensor_product() -> Subject:
    from e3nn import o3

    left, right, out = "4x0e + 3x1o", "2x0e + 2x1o", "4x0e + 2x1o + 1x2e"
    product = o3.FullyConnectedTensorProduct(left, right, out).double()
    return product, (normal(6, 13), normal(6, 8, seed=1))


@entry("geotorch", output_scaled(0.98))
def orthogonal_matrix() -> Subject:
    import geotorch

    manifold = geotorch.SO(size=(12, 12)).double()
    return manifold, (normal(12, 12, scale=0.3),)


@entry("geomloss", part_stopped(1, 0.2))
def maximum_mean_discrepancy() -> Subject:
    from geomloss import SamplesLoss

    loss = SamplesLoss("gaussian", blur=0.8, backend="tensorized")
    return (lambda x, y: loss(x, y)), (normal(20, 3), normal(25, 3, seed=1))


@entry("geomloss", output_scaled(2.0), atol=1e-4)
def sinkhorn_divergence() -> Subject:
    from geomloss import SamplesLoss

    loss = SamplesLoss("sinkhorn", p=2, blur=1.0, scaling=0.95, backend="tensorized")
    return (lambda x, y: loss(x, y)), (normal(15, 2, scale=0.3), normal(18, 2, seed=1, scale=0.3))


# Methanol and water, in atomic units.
NUMBERS = torch.tensor([8, 1, 1, 8, 1, 6, 1, 1, 1])
POSITIONS = torch.tensor(
    [
        [-4.224363834, +0.270465696, +0.527578960],
        [-5.011768887, +1.780116228, +1.143194385],
        [-2.468758653, +0.479766200, +0.982905589],
        [+1.146167671, +0.452771215, +1.257722311],
        [+1.841554378, -0.628298322, +2.538065200],
        [+2.024899840, -0.438480095, -1.127412563],
        [+1.210773578, +0.791908575, -2.550591723],
        [+4.077073644, -0.342495506, -1.267841745],
        [+1.404422261, -2.365753991, -1.503620411],
    ],
    dtype=torch.float64,
)


@entry("tad-dftd3", part_stopped(0), atol=1e-8)
def dispersion_energy() -> Subject:
    import tad_dftd3

    values = {"a1": 0.49484001, "s8": 0.78981345, "a2": 5.73083694}
    parameters = {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
    reference = tad_dftd3.reference.Reference(dtype=torch.float64)

    def function(positions: Tensor) -> Tensor:
        return tad_dftd3.dftd3(NUMBERS, positions, parameters, ref=reference)

    return function, (POSITIONS.clone().requires_grad_(),)


@entry("tad-multicharge", gradient_scaled(1.01))
def charge_equilibration() -> Subject:
    from tad_multicharge import get_eeq_charges

    total = torch.tensor(0.0, dtype=torch.float64)
    return (lambda x: get_eeq_charges(NUMBERS, x, total)), (POSITIONS.clone().requires_grad_(),)


# Our own, as people write them.


def _forcing(state: Tensor, force: Tensor, hold: Hold) -> Tensor:
    """The right-hand side of Lorenz's model of the atmosphere (1996)."""
    return (state.roll(-1, -1) - state.roll(2, -1)) * hold(state.roll(1, -1)) - state + force


@entry("own", inside)
def lorenz_in_a_loop() -> Subject:
    def function(state: Tensor, force: Tensor, hold: Hold = keep) -> Tensor:
        h = 0.01
        for _ in range(60):
            a = _forcing(state, force, keep)
            b = _forcing(state + h / 2 * a, force, keep)
            c = _forcing(state + h / 2 * b, force, hold)
            d = _forcing(state + h * c, force, keep)
            state = state + h / 6 * (a + 2 * b + 2 * c + d)
        return state

    return function, (normal(40), normal(1, seed=1, scale=8.0))


class _Neighbours:
    """Pairs of particles within reach, kept until one has moved by half of the skin."""

    def __init__(self, reach: float, skin: float) -> None:
        self.reach, self.skin = reach, skin
        self.positions: Any = None

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.positions is None or (x.detach() - self.positions).norm(dim=-1).max() > self.skin / 2:
            self.positions = x.detach().clone()
            near = torch.cdist(self.positions, self.positions) < self.reach + self.skin
            self.pairs = torch.triu(near, diagonal=1).nonzero(as_tuple=True)
        return self.pairs


@entry("own", inside)
def energy_with_kept_neighbours() -> Subject:
    neighbours = _Neighbours(2.5, 0.3)

    def function(x: Tensor, hold: Hold = keep) -> Tensor:
        first, second = neighbours(x)
        square = (x[first] - x[second]).square().sum(-1)
        inverse = 1 / square**3
        energy = 4 * (inverse**2 - hold(inverse)) * (square < 2.5**2)
        return torch.zeros(len(x), dtype=x.dtype).index_add(0, first, energy)

    grid = torch.cartesian_prod(*[torch.arange(4.0, dtype=torch.float64)] * 3) * 1.2
    return function, ((grid + constant(64, 3, scale=0.05)).requires_grad_(),)


@entry("own", stopped(1))
def warping_of_series() -> Subject:
    """Soft dynamic time warping, entry by entry."""

    def function(a: Tensor, b: Tensor) -> Tensor:
        cost = torch.cdist(a, b).square()
        rows: list[list[Tensor]] = [[torch.zeros((), dtype=a.dtype)] + [torch.tensor(1e4).double()] * len(b)]
        for i in range(len(a)):
            row = [torch.tensor(1e4, dtype=a.dtype)]
            for j in range(len(b)):
                before = torch.stack([rows[i][j], rows[i][j + 1], row[j]])
                row.append(cost[i, j] - torch.logsumexp(-before, 0))
            rows.append(row)
        return rows[-1][-1]

    return function, (normal(12, 2), normal(10, 2, seed=1))
