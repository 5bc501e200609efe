"""Densities, kernels and flows: torch.distributions, gpytorch, linear_operator, zuko."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.zoo.entry import Subject, constant, entry, normal, uniform
from benchmarks.zoo.mistakes import (
    gradient_rolled,
    gradient_scaled,
    gradient_transposed,
    number_stopped,
    output_rolled,
    output_scaled,
    output_stopped,
    part_stopped,
    stopped,
)


@entry("torch.distributions", stopped(1))
def multivariate_normal_density() -> Subject:
    from torch.distributions import MultivariateNormal

    def function(mean: Tensor, factor: Tensor, x: Tensor) -> Tensor:
        scale = torch.tril(factor, -1) + torch.diag(torch.nn.functional.softplus(factor.diagonal()))
        return MultivariateNormal(mean, scale_tril=scale, validate_args=False).log_prob(x)

    return function, (normal(6), normal(6, 6, seed=1), normal(10, 6, seed=2))


@entry("torch.distributions", output_scaled(1.02))
def dirichlet_divergence() -> Subject:
    from torch.distributions import Dirichlet, kl_divergence

    def function(a: Tensor, b: Tensor) -> Tensor:
        return kl_divergence(Dirichlet(a.exp()), Dirichlet(b.exp()))

    return function, (normal(8, 5, scale=0.5), normal(8, 5, seed=1, scale=0.5))


@entry("torch.distributions", number_stopped(2, 3))
def mixture_density() -> Subject:
    from torch.distributions import Categorical, MixtureSameFamily, Normal

    def function(logits: Tensor, mean: Tensor, log_scale: Tensor, x: Tensor) -> Tensor:
        parts = Normal(mean, log_scale.exp())
        return MixtureSameFamily(Categorical(logits=logits), parts).log_prob(x)

    return function, (normal(5), normal(5, seed=1), normal(5, seed=2, scale=0.3), normal(60, seed=3))


@entry("torch.distributions", gradient_rolled(0))
def student_density() -> Subject:
    from torch.distributions import StudentT

    def function(freedom: Tensor, location: Tensor, scale: Tensor, x: Tensor) -> Tensor:
        return StudentT(freedom, location, scale).log_prob(x).sum(0)

    return function, (uniform(7, low=2, high=9), normal(7), uniform(7, seed=1, low=0.5, high=2), normal(9, 7))


@entry("torch.distributions", gradient_scaled(-1.0, 1))
def kumaraswamy_sample() -> Subject:
    from torch.distributions import Kumaraswamy

    def function(a: Tensor, b: Tensor) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(3)  # the same noise in every run
            return Kumaraswamy(a, b, validate_args=False).rsample((4,))

    return function, (uniform(12, low=0.5, high=3), uniform(12, seed=1, low=0.5, high=3))


@entry("torch.distributions", part_stopped(0, 0.5))
def simplex_density() -> Subject:
    from torch.distributions import Independent, Normal, StickBreakingTransform, TransformedDistribution

    def function(mean: Tensor, x: Tensor) -> Tensor:
        base = Independent(Normal(mean, torch.ones_like(mean), validate_args=False), 1, validate_args=False)
        density = TransformedDistribution(base, [StickBreakingTransform()], validate_args=False)
        return density.log_prob(torch.softmax(x, -1))

    return function, (normal(6), normal(16, 7, seed=1))


@entry("gpytorch", gradient_rolled(0))
def matern_kernel() -> Subject:
    from gpytorch.kernels import MaternKernel, ScaleKernel

    kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=3)).double()
    kernel.base_kernel.lengthscale = torch.tensor([0.7, 1.1, 1.9])
    return (lambda x, y: kernel(x, y).to_dense()), (normal(15, 3), normal(12, 3, seed=1))


@entry("gpytorch", gradient_scaled(0.5))
def spectral_mixture_kernel() -> Subject:
    from gpytorch.kernels import SpectralMixtureKernel

    kernel = SpectralMixtureKernel(num_mixtures=3, ard_num_dims=2).double()
    y = constant(20, 2)
    return (lambda x: kernel(x, y).to_dense()), (normal(15, 2),)


class _Likelihood(nn.Module):
    """The marginal log likelihood of an exact Gaussian process, as a module of the targets."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        import gpytorch

        class Model(gpytorch.models.ExactGP):
            def __init__(self, likelihood: nn.Module) -> None:
                super().__init__(x, torch.zeros(len(x), dtype=x.dtype), likelihood)
                self.mean_module = gpytorch.means.ConstantMean()
                self.covar_module = gpytorch.kernels.ScaleKernel(
                    gpytorch.kernels.RBFKernel(ard_num_dims=x.shape[1])
                )

            def forward(self, x: Tensor) -> nn.Module:
                return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        self.model = Model(likelihood).double().train()
        self.objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, self.model)
        self.x = x

    def forward(self, targets: Tensor) -> Tensor:
        return self.objective(self.model(self.x), targets)


@entry("gpytorch", stopped(2))
def exact_marginal_likelihood() -> Subject:
    module = _Likelihood(constant(40, 2))
    parameters = dict(module.model.named_parameters())
    names = [f"model.{name}" for name in parameters]

    def function(targets: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (targets,))

    values = [p.detach().clone().requires_grad_() for p in parameters.values()]
    return function, (normal(40), *values)


@entry("linear_operator", gradient_transposed(0))
def inverse_quadratic_and_determinant() -> Subject:
    from linear_operator import to_linear_operator

    def function(factor: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        matrix = factor @ factor.mT + torch.eye(len(factor), dtype=factor.dtype)
        return to_linear_operator(matrix).inv_quad_logdet(right, logdet=True)

    return function, (normal(16, 16), normal(16, 3, seed=1))


@entry("zuko", output_rolled())
def neural_spline_flow() -> Subject:
    from zuko.flows import NSF

    flow = NSF(features=4, context=3, transforms=2, hidden_features=(32, 32)).double()
    return (lambda x, context: flow(context).log_prob(x)), (normal(8, 4), normal(8, 3, seed=1))


@entry("zuko", output_stopped(5))
def masked_autoregressive_flow() -> Subject:
    from zuko.flows import MAF

    flow = MAF(features=16, transforms=3, hidden_features=(64, 64)).double()
    return (lambda x: flow().log_prob(x)), (normal(12, 16),)
