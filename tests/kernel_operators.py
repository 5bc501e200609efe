"""Kernels with rules for torch's modes, and operators of `torch.library`: right, or wrong in one of them."""

import torch
from torch.autograd import Function


def exp_reference(x):
    return torch.exp(x) + x


def exp(bug=None):
    """A Function with every rule that torch knows."""

    class Exp(Function):
        @staticmethod
        def forward(x):
            return torch.exp(x) + x

        @staticmethod
        def setup_context(ctx, inputs, output):
            (x,) = inputs
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            if bug == "double backward through a saved number":
                return g * (torch.exp(x.detach()) + 1)
            if bug == "double backward without a graph":
                with torch.no_grad():
                    return g * (torch.exp(x) + 1)
            return g * (torch.exp(x) + 1)

        @staticmethod
        def jvp(ctx, t):
            (x,) = ctx.saved_tensors
            slope = torch.exp(x) if bug == "jvp without a term" else torch.exp(x) + 1
            return t * slope

        @staticmethod
        def vmap(info, in_dims, x):
            if bug == "batch of the first sample":
                x = x.select(in_dims[0], 0).expand(info.batch_size, *x.select(in_dims[0], 0).shape)
                x = x + torch.arange(info.batch_size, dtype=x.dtype).reshape(-1, *([1] * (x.dim() - 1)))
                return Exp.apply(x), 0
            return Exp.apply(x), in_dims[0]

    return Exp.apply


def pair_reference(x):
    return torch.sin(x), torch.cos(x)


def pair(bug=None):
    """Two outputs, of which one may have no cotangent."""

    class Pair(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.set_materialize_grads(False)
            return torch.sin(x), torch.cos(x)

        @staticmethod
        def backward(ctx, g, h):
            (x,) = ctx.saved_tensors
            if bug == "both cotangents or none":
                if g is None or h is None:
                    return torch.zeros_like(x)
                return g * torch.cos(x) - h * torch.sin(x)
            total = torch.zeros_like(x)
            if g is not None:
                total = total + g * torch.cos(x)
            if h is not None:
                total = total - h * torch.sin(x)
            return total

    return Pair.apply


def scale_reference(x, factor):
    return x * factor


def scale(bug=None):
    """The input itself, where there is nothing to do."""

    def kernel(x, factor):
        if bug == "output is the input" and factor == 1.0:
            return x.view(x.shape)
        return x * factor

    return kernel


def ramp_reference(x):
    return torch.clamp(x, min=0.0) + 0.1 * x


_made = {}


def ramp(bug=None):
    """An operator with a fake kernel and a registered derivative; made once, as operators are."""
    if bug in _made:
        return _made[bug]
    name = f"covector_tests::ramp_{len(_made)}"

    @torch.library.custom_op(name, mutates_args=())
    def operator(x: torch.Tensor) -> torch.Tensor:
        if bug == "operator writes into its input":
            x.add_(0)
            x.mul_(1 + 1e-3)
        return torch.clamp(x, min=0.0) + 0.1 * x

    @operator.register_fake
    def fake(x):
        if bug == "fake of another shape":
            return x.new_empty(x.shape[:-1])
        if bug == "fake of another dtype":
            return x.new_empty(x.shape, dtype=torch.float64)
        return torch.empty_like(x)

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ((x > 0).to(x.dtype) + 0.1)

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    operator.register_autograd(backward, setup_context=setup)
    _made[bug] = operator
    return operator
