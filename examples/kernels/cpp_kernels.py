"""An operator in C++, built by torch.utils.cpp_extension: right, and with planted bugs.

`operators()` builds it, which takes a compiler and ninja, and some seconds; a directory that is given keeps
what was built. Each operator has a fake kernel and a backward, registered with torch.library.
"""

from pathlib import Path

import torch
from torch.utils import cpp_extension

SOURCE = Path(__file__).with_name("rms_norm.cpp")

BUGS = {
    1: "strides are ignored",
    2: "the tail of a row is left out of a sum of the backward",
    3: "the output is a buffer that is used again",
    4: "the fake kernel gives float32 for every dtype",
}


def rms_norm_reference(x, weight):
    """What the operator is compared with."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def operators(directory=None):
    """The operators by number: 0 is right, the others have the bugs of the table."""
    cpp_extension.load(
        "covector_examples",
        [str(SOURCE)],
        extra_cflags=["-O1"],
        build_directory=None if directory is None else str(directory),
        is_python_module=False,
    )
    return [_registered(bug) for bug in range(len(BUGS) + 1)]


def _registered(bug):
    """One operator, with its fake kernel and its backward."""
    name = f"covector_examples::rms_norm_{bug}"
    backward_of = getattr(torch.ops.covector_examples, f"rms_norm_{bug}_backward")

    @torch.library.register_fake(name)
    def _(x, weight):
        return torch.empty(x.shape, dtype=torch.float32 if bug == 4 else x.dtype, device=x.device)

    @torch.library.register_fake(f"{name}_backward")
    def _(g, x, weight):
        return x.new_empty(x.shape), weight.new_empty(weight.shape)

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, g):
        return backward_of(g, *ctx.saved_tensors)

    def refuse(ctx, *cotangents):
        raise NotImplementedError("rms_norm can be differentiated once")

    torch.library.register_autograd(name, backward, setup_context=setup_context)
    # Without this, a second derivative through the backward would silently be zero.
    torch.library.register_autograd(f"{name}_backward", refuse)
    return getattr(torch.ops.covector_examples, f"rms_norm_{bug}")


def inputs(dtype=torch.float32):
    """Rows of a length that is no multiple of eight."""
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.randn(shape, generator=generator) for shape in ((24, 45), (45,)))
    return tuple(tensor.to(dtype).requires_grad_() for tensor in drawn)


if __name__ == "__main__":
    import covector

    for operator in operators():
        covector.check_kernel(operator, rms_norm_reference, inputs(torch.bfloat16)).show()
