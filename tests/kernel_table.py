"""The table of kernels: planted bugs, and right twins, with the lens that has to see each bug."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import kernel_families as families
import kernel_operators as operators

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
SHORT = {F32: "float32", BF16: "bfloat16", F16: "float16"}


@dataclass(frozen=True)
class Entry:
    """A kernel beside its reference; `bug` is what is planted, `lens` what has to see it."""

    family: str
    bug: str | None
    kernel: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: Any
    dtype: torch.dtype
    lens: str = "as given"
    held: bool = False
    """Kept aside while limits were chosen."""

    def __str__(self) -> str:
        return f"{self.family}, {self.bug or 'right'}, {SHORT[self.dtype]}"


def randn(*shapes, dtype, seed=0, grads=None):
    """Random inputs that require grad."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    return tuple(t.requires_grad_(grads is None or i in grads) for i, t in enumerate(made))


SHAPES = {
    "softmax": ((48, 80),),
    "layer norm": ((48, 40), (40,), (40,)),
    "rms norm": ((48, 40), (40,)),
    "gelu": ((32, 60),),
    "softplus": ((32, 60),),
    "swiglu": ((40, 40), (40, 40)),
    "linear": ((24, 130), (20, 130), (20,)),
    "cross entropy": ((40, 50),),
    "attention": ((2, 3, 40, 8), (2, 3, 40, 8), (2, 3, 40, 8)),
    "scan": ((24, 90),),
    "row mean": ((40, 60),),
    "exp": ((24, 33),),
    "pair": ((24, 33),),
    "ramp": ((24, 33),),
}

MAKERS = {
    "softmax": (families.softmax, families.softmax_reference),
    "layer norm": (families.layer_norm, families.layer_norm_reference),
    "rms norm": (families.rms_norm, families.rms_norm_reference),
    "gelu": (families.gelu, families.gelu_reference),
    "softplus": (families.softplus, families.softplus_reference),
    "swiglu": (families.swiglu, families.swiglu_reference),
    "linear": (families.linear, families.linear_reference),
    "cross entropy": (families.cross_entropy, families.cross_entropy_reference),
    "attention": (families.attention, families.attention_reference),
    "scan": (families.scan, families.scan_reference),
    "row mean": (families.row_mean, families.row_mean_reference),
    "exp": (operators.exp, operators.exp_reference),
    "pair": (operators.pair, operators.pair_reference),
    "ramp": (operators.ramp, operators.ramp_reference),
}

# Right kernels that are written in another way: unfused, in another order.
OTHERS = {
    "softmax": [families.softmax_unfused, families.softmax_by_blocks],
    "layer norm": [families.layer_norm_unfused],
    "rms norm": [families.rms_norm_unfused],
    "gelu": [families.gelu_unfused],
    "swiglu": [families.swiglu_unfused],
    "linear": [families.linear_split],
    "cross entropy": [families.cross_entropy_unfused],
    "attention": [families.attention_unfused],
    "scan": [families.scan_in_two_stages],
    "row mean": [families.row_mean_by_halves],
}

# Families that were kept aside while limits were chosen.
HELD = {"attention", "scan", "row mean", "rms norm", "linear"}


def sized(family, dtype, size):
    """Inputs of a size, where the last axis of the first input is free."""
    return randn(*((12, size) if i == 0 else shape for i, shape in enumerate(SHAPES[family])), dtype=dtype)


def entry(family, bug, dtype, lens="as given", inputs=None):
    make, reference = MAKERS[family]
    inputs = randn(*SHAPES[family], dtype=dtype) if inputs is None else inputs
    return Entry(family, bug, make(bug), reference, inputs, dtype, lens, family in HELD)


def careless(family, bug, dtype, lens):
    """A right kernel that is called in a careless way."""
    make, reference = MAKERS[family]
    kernel = families.careless(make(), bug)
    return Entry(
        family, bug, kernel, reference, randn(*SHAPES[family], dtype=dtype), dtype, lens, family in HELD
    )


BUGS = [
    entry("softmax", "last columns 4 % off", F32),
    entry("softmax", "last block not normalized", BF16),
    entry("softmax", "last row of a block skipped", BF16),
    entry("softmax", "low-precision row sum", BF16, inputs=randn((24, 600), dtype=BF16)),
    entry("softmax", "row sum without the tail", F16),
    entry("softmax", "contiguous input assumed", F32, "layout"),
    entry("softmax", "offset ignored", BF16, "layout"),
    entry("softmax", "contiguous cotangent assumed", F32, "layout"),
    entry("softmax", "cotangent not expanded", F32, "layout", inputs=None),
    entry("softmax", "input written", F32, "in place"),
    entry("softmax", "cotangent written", F32, "in place"),
    entry("softmax", "saved tensor written", F32, "again"),
    entry("softmax", "maximum not subtracted", F32, "scale"),
    entry("softmax", "NaN swallowed", F32, "scale"),
    entry("layer norm", "another eps", F32),
    entry("layer norm", "mean term missing in the last rows", BF16),
    entry("layer norm", "last partial sum dropped", BF16),
    entry(
        "layer norm", "low-precision weight gradient", BF16, inputs=randn((700, 40), (40,), (40,), dtype=BF16)
    ),
    entry("layer norm", "bias gradient is that of the weight", F16),
    entry("layer norm", "gradients by need", F32, "requires grad"),
    entry("rms norm", "mean over one too many", F32),
    entry("rms norm", "cache by address", F32, "again"),
    entry("rms norm", "statistics kept outside", BF16, "again"),
    entry("rms norm", "output buffer used again", F32, "again"),
    entry("rms norm", "not deterministic", F32, "again"),
    entry("rms norm", "gradient of the weight needs that of the input", F32, "requires grad"),
    entry("gelu", "tanh instead of erf", F32),
    entry("gelu", "density cut off", F16),
    entry("gelu", "contiguous view", F32, "layout"),
    entry("softplus", "threshold too low", F32, inputs=(randn((32, 60), dtype=F32)[0].detach() * 4,)),
    entry("softplus", "overflow", BF16, "scale"),
    entry(
        "swiglu",
        "slope without its second term for large inputs",
        BF16,
        inputs=tuple((3 * t.detach()).requires_grad_() for t in randn((40, 40), (40, 40), dtype=BF16)),
    ),
    entry("swiglu", "strides of the other input", F32, "layout"),
    entry("swiglu", "gradients exchanged for one", BF16, "requires grad"),
    entry("linear", "half-precision inputs", F32),
    entry("linear", "low-precision accumulator", F16, inputs=randn((24, 3000), (16, 3000), (16,), dtype=F16)),
    entry("linear", "tail of the inner axis dropped", F32),
    entry("linear", "bias gradient of one block", BF16),
    entry("cross entropy", "mean over what is ignored", F32),
    entry("cross entropy", "smoothing missing in backward", F32),
    entry("cross entropy", "ignored rows have gradients", BF16),
    entry("cross entropy", "cotangent applied twice", BF16),
    entry("attention", "mask off by one", F32),
    entry("attention", "mask off by a block", BF16),
    entry("attention", "mask is a small number", F32),
    entry("attention", "missing rescale", F16),
    entry("attention", "scale of one head", F16),
    entry("scan", "carry in low precision", F32),
    entry("scan", "exclusive in backward", F16),
    entry("row mean", "padded size", BF16),
    entry("row mean", "tail of a vector ignored", F32, "sizes", partial(sized, "row mean", F32)),
    entry("row mean", "no rows", F32, "sizes", lambda n: randn((n, 24), dtype=F32)),
    entry("exp", "jvp without a term", F32, "modes"),
    entry("exp", "batch of the first sample", F32, "modes"),
    entry("exp", "double backward through a saved number", F32, "second order"),
    entry("exp", "double backward without a graph", BF16, "second order"),
    entry("pair", "both cotangents or none", F32, "requires grad"),
    entry("ramp", "fake of another shape", F32, "registration"),
    entry("ramp", "fake of another dtype", F32, "registration"),
    entry("ramp", "operator writes into its input", F32, "registration"),
    careless("linear", "memory read in order", F32, "layout"),
    careless("attention", "memory read in order", BF16, "layout"),
    careless("scan", "memory read in order", F16, "layout"),
    careless("linear", "needs every gradient", F32, "requires grad"),
    careless("attention", "needs every gradient", F32, "requires grad"),
    careless("scan", "NaN cleared", F32, "scale"),
    careless("row mean", "NaN cleared", BF16, "scale"),
    careless("rms norm", "NaN cleared", F16, "scale"),
    careless("gelu", "mask kept from the first call", F32, "again"),
    careless("attention", "mask kept from the first call", F32, "again"),
    Entry(
        "scale",
        "output is the input",
        operators.scale("output is the input"),
        operators.scale_reference,
        (randn((12, 20), dtype=F32)[0], 1.0),
        F32,
        "in place",
    ),
]

TWINS = [
    *(entry(family, None, dtype) for family in MAKERS for dtype in (F32, BF16, F16)),
    *(
        Entry(
            family,
            None,
            other,
            MAKERS[family][1],
            randn(*SHAPES[family], dtype=dtype),
            dtype,
            held=family in HELD,
        )
        for family, others in OTHERS.items()
        for other in others
        for dtype in (F32, BF16, F16)
    ),
    entry("row mean", None, F32, inputs=partial(sized, "row mean", F32)),
    entry("softmax", None, BF16, inputs=partial(sized, "softmax", BF16)),
    entry("softplus", None, F32, inputs=(randn((32, 60), dtype=F32)[0].detach() * 4,)),
    Entry(
        "scale", None, operators.scale(), operators.scale_reference, (randn((12, 20), dtype=F32)[0], 1.0), F32
    ),
]


def is_asked(value):
    """Whether gradients are compared by it."""
    return isinstance(value, torch.Tensor) and value.requires_grad


def passes_assert_close(entry, **tolerances):
    """What an everyday test says: outputs and gradients against the reference in the same dtype."""

    def run(function):
        given = entry.inputs(64) if callable(entry.inputs) else entry.inputs
        leaves = [x.detach().clone().requires_grad_() if is_asked(x) else x for x in given]
        outputs = function(*leaves)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        generator = torch.Generator().manual_seed(0)
        cotangents = [
            torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.dtype) for o in outputs
        ]
        by = [x for x in leaves if is_asked(x)]
        gradients = torch.autograd.grad(outputs, by, cotangents)
        return [o.detach() for o in outputs], gradients

    try:
        torch.testing.assert_close(run(entry.kernel), run(entry.reference), **tolerances)
    except (AssertionError, RuntimeError):
        return False
    return True
