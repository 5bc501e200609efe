"""The table of lenses: what each is called, what it varies, and how it looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from covector.kernels.bench import Bench
from covector.kernels.combined import Combined
from covector.kernels.lenses.again import again
from covector.kernels.lenses.in_place import in_place
from covector.kernels.lenses.layout import layout, requires_grad
from covector.kernels.lenses.modes import modes
from covector.kernels.lenses.registration import registration
from covector.kernels.lenses.scale import scale
from covector.kernels.lenses.second import second_order
from covector.kernels.lenses.sizes import sizes
from covector.kernels.row import Row


@dataclass(frozen=True)
class Lens:
    """A row of the table; `look` gives a row of the report for each way of calling."""

    name: str
    varies: str
    look: Callable[[Bench, Combined], Iterator[Row]]
    look_at: str = ""
    """Where the mistake of a kernel is that fails here alone."""
    rests_on_truth: bool = True
    """Whether a kernel that is wrong as it was given shows the same here again."""


LENSES = (
    Lens(
        "layout",
        "inputs and cotangents: transposed, sliced with an offset, step 2, channels last, expanded, "
        "overlapping; a cotangent from .sum()",
        layout,
        "strides and offsets: call .contiguous() on the inputs and cotangents it reads, or pass these to it",
    ),
    Lens(
        "requires grad",
        "which inputs require grad; outputs without a cotangent",
        requires_grad,
        "what depends on ctx.needs_input_grad, and cotangents that are None or zero",
    ),
    Lens(
        "sizes",
        "0, 1, odd, prime, beside a power of two, many blocks",
        sizes,
        "the mask of the last block, the number of blocks, and a grid of none",
    ),
    Lens(
        "scale",
        "inputs and cotangents times 2^-20 to 2^20; NaN, infinity, the edge of the dtype, zeros",
        scale,
        "an epsilon that is not the reference's, a maximum that is not subtracted, squares that overflow, "
        "thresholds, comparisons that drop a NaN",
    ),
    Lens(
        "again",
        "called twice, with another call between, from two threads, backward twice",
        again,
        "what outlives a call: buffers, caches, attributes",
        rests_on_truth=False,
    ),
    Lens(
        "in place",
        "whether inputs, cotangents and saved tensors stay as they are; shared memory",
        in_place,
        "operations in place, and results that are views",
        rests_on_truth=False,
    ),
    Lens(
        "modes",
        "torch.compile, vmap, forward mode, torch.func, autocast, no_grad, inference mode, checkpointing, "
        "CUDA graphs",
        modes,
        "the rule for that mode (jvp, vmap, a fake kernel), or what the kernel asks torch about it",
    ),
    Lens(
        "second order",
        "double backward, or a clear refusal",
        second_order,
        "what backward is made of: each operation there is differentiated in turn",
    ),
    Lens(
        "registration",
        "of operators of torch.library: schema, autograd, fake kernel, dynamic shapes",
        registration,
        "the schema, the fake kernel and register_autograd",
        rests_on_truth=False,
    ),
)
