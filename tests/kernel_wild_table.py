"""The third table: bugs and right twins of `kernel_wild.py`, and the inputs that they are checked on."""

from functools import partial

import torch

import kernel_wild as kernels
from kernel_families import careless
from kernel_table import BF16, F16, F32, Entry, randn

FAMILIES = {
    "rotated": (kernels.rotated, kernels.rotated_as_complex, ((2, 40, 16),)),
    "gated": (kernels.gated, kernels.gated_unfused, ((24, 60),)),
    "grouped": (kernels.grouped, kernels.grouped_in_two_passes, ((4, 8, 20), (8,))),
    "rms": (kernels.rms, kernels.rms_by_blocks, ((20, 77), (77,))),
    "entropy": (kernels.entropy, kernels.entropy_by_hand, ((40, 30),)),
    "bags": (kernels.bags, kernels.bags_from_the_end, ((20, 24),)),
    "depthwise": (kernels.depthwise, kernels.depthwise_by_taps, ((3, 6, 33), (6, 4))),
    "pooled": (kernels.pooled, kernels.pooled_by_index, None),
    "shared heads": (kernels.shared_heads, kernels.online, ((2, 4, 30, 8), (2, 2, 30, 8), (2, 2, 30, 8))),
    "routed": (kernels.routed, kernels.routed_by_shares, ((40, 12), (12, 6))),
    "quantised": (kernels.quantised, kernels.quantised_by_parts, None),
    "segments": (kernels.segments, kernels.segments_by_loop, ((48, 20),)),
    "recurrence": (kernels.recurrence, kernels.recurrence_in_chunks, ((10, 30), (10, 30))),
    "cosine": (kernels.cosine, kernels.cosine_by_hand, ((30, 24), (30, 24))),
    "divergence": (kernels.divergence, kernels.divergence_by_sums, ((24, 40), (24, 40))),
    "stepped": (kernels.stepped, kernels.stepped_in_another_order, ((15, 20),) * 4),
    "variance": (kernels.variance, kernels.variance_merged, None),
    "dots": (kernels.dots, kernels.dots_compensated, ((24, 50), (24, 50))),
    "capped": (kernels.capped, kernels.capped_by_exp, ((24, 40),)),
    "lse": (kernels.lse, kernels.lse_online, ((24, 75),)),
    "adapted": (kernels.adapted, kernels.adapted_merged, ((20, 16), (16, 24), (16, 4), (4, 24))),
}


def inputs_of(family, dtype, seed=0):
    if family == "pooled":
        return kernels.with_ties(dtype, seed)
    if family == "variance":
        return kernels.shifted(dtype, seed)
    if family == "quantised":
        (x,) = randn((24, 40), dtype=dtype, seed=seed)
        return ((4 * x.detach()).requires_grad_(), torch.full((1,), 0.5, dtype=dtype, requires_grad=True))
    shapes = FAMILIES[family][2]
    given = randn(*shapes, dtype=dtype, seed=seed)
    return (*given, kernels.TARGET) if family == "entropy" else given


def sized(family, dtype, size, seed=0):
    """The last axis of every input is free."""
    return randn(*((*shape[:-1], size) for shape in FAMILIES[family][2]), dtype=dtype, seed=seed)


def wild(family, bug, dtype, made, lens="as given", inputs=None):
    given = inputs_of(family, dtype) if inputs is None else inputs
    return Entry(family, bug, made, FAMILIES[family][0], given, dtype, lens)


WILD_BUGS = [
    wild(
        "rotated", "positions start anew after a block", BF16, kernels.fused(kernels.rotated_by_a_stale_table)
    ),
    wild("rotated", "one row of a half is 2 % off", F32, kernels.fused(kernels.rotated_with_a_wrong_row)),
    wild("rotated", "memory read in order", F32, careless(kernels.rotated, "memory read in order"), "layout"),
    wild(
        "gated",
        "halves exchanged in the last rows",
        BF16,
        kernels.fused(kernels.gated, kernels.halves_exchanged),
    ),
    wild(
        "gated",
        "cotangent read in order",
        F32,
        kernels.recomputed(kernels.gated, kernels.reads_in_order),
        "layout",
    ),
    wild(
        "gated",
        "cotangent written",
        F16,
        kernels.recomputed(kernels.gated, kernels.writes_cotangent),
        "in place",
    ),
    wild("grouped", "eps outside of the root", F32, partial(kernels._grouped, eps_inside=False)),
    wild(
        "grouped",
        "weight of the channel before, in the last",
        BF16,
        partial(kernels._grouped, group_of=lambda c: c if c < 7 else 6),
    ),
    wild(
        "grouped",
        "weight gradient of the last sample left out",
        F16,
        kernels.fused(kernels.grouped, kernels.without_the_last_sample),
    ),
    wild(
        "rms",
        "running sum in the dtype",
        BF16,
        kernels.rms_with_a_running_sum_in_the_dtype,
        inputs=randn((4, 6000), (6000,), dtype=BF16),
    ),
    wild("rms", "tail of the row ignored", F32, kernels.rms_without_the_tail),
    wild("rms", "size one", F32, kernels.one_row_as_none(kernels.rms), "sizes", partial(sized, "rms", F32)),
    wild("rms", "scale of the first call", F32, kernels.cached(kernels.rms), "again"),
    wild(
        "entropy",
        "ignored rows have a gradient",
        BF16,
        kernels.fused(kernels.entropy, kernels.ignored_rows_are_the_last_class),
    ),
    wild(
        "entropy",
        "mean over all rows in backward",
        F16,
        kernels.fused(kernels.entropy, kernels.mean_of_all_rows),
    ),
    wild("entropy", "NaN cleared", F32, lambda x, t: kernels.entropy(x.nan_to_num(0.0), t), "scale"),
    wild("bags", "repeated rows overwrite", F32, kernels.fused(kernels.bags, kernels.once_for_each_row)),
    wild(
        "bags",
        "4 % in one column",
        F16,
        kernels.fused(kernels.bags, kernels.times(0, (slice(None), -1), 1.04)),
    ),
    wild(
        "depthwise",
        "block without what is before it",
        BF16,
        kernels.depthwise_without_padding_in_the_last_block,
    ),
    wild(
        "depthwise",
        "weight gradient of the first tap halved",
        F32,
        kernels.fused(kernels.depthwise, kernels.times(1, (slice(None), 0), 0.5)),
    ),
    wild("pooled", "every tie gets the gradient", BF16, kernels.fused(kernels.pooled, kernels.every_tie)),
    wild("shared heads", "heads taken in turn", F32, partial(kernels.online, head=lambda h: h % 2)),
    wild("shared heads", "mask off by one", BF16, partial(kernels.online, mask=lambda i, j: j > i + 1)),
    wild(
        "shared heads",
        "mask by blocks at the end",
        F16,
        partial(kernels.online, mask=lambda i, j: j > torch.where(i >= 24, 29, i)),
    ),
    wild("shared heads", "last rescale missing", F32, partial(kernels.online, rescaled=False)),
    wild(
        "shared heads",
        "gradient of one head of two",
        BF16,
        kernels.fused(kernels.shared_heads, kernels.first_head_of_a_pair_alone),
    ),
    wild("routed", "not normalised again", BF16, kernels.routed_by_all),
    wild(
        "routed",
        "gradient of two experts 3 % off",
        F32,
        kernels.fused(kernels.routed, kernels.times(1, (slice(None), slice(4, 6)), 0.97)),
    ),
    wild(
        "quantised",
        "gradient where it is cut off",
        BF16,
        kernels.fused(kernels.quantised, kernels.passes_everywhere),
    ),
    wild(
        "quantised",
        "cut off below the highest level",
        F32,
        lambda x, s: kernels.quantised(x.clamp(-100, 3.4), s),
    ),
    wild("segments", "last row a tenth less", BF16, kernels.segments_without_the_last_row),
    wild("segments", "the last bits are drawn", F32, kernels.jittered(kernels.segments), "again"),
    wild(
        "recurrence",
        "carry of a chunk not decayed",
        BF16,
        partial(kernels.recurrence_in_chunks, decayed=False),
    ),
    wild(
        "recurrence",
        "gate gradient of the first step of a block 5 % off",
        F32,
        kernels.fused(kernels.recurrence, kernels.times(0, (slice(None), slice(16, 17)), 1.05)),
    ),
    wild(
        "cosine", "no projection in the last rows", F16, kernels.fused(kernels.cosine, kernels.no_projection)
    ),
    wild("cosine", "memory read in order", BF16, careless(kernels.cosine, "memory read in order"), "layout"),
    wild(
        "divergence",
        "weights taken as constant",
        F32,
        kernels.fused(kernels.divergence, called=kernels.weights_are_constant),
    ),
    wild(
        "divergence",
        "mean of the batch in one gradient",
        BF16,
        kernels.fused(kernels.divergence, kernels.times(1, slice(None), 1 / 24)),
    ),
    wild("stepped", "eps inside of the root", F32, partial(kernels.stepped_in_another_order, inside=True)),
    wild("stepped", "decay left out", F32, partial(kernels.stepped_in_another_order, decay=1.0)),
    wild(
        "stepped",
        "correction of another step",
        F16,
        partial(kernels.stepped_in_another_order, correction=0.1855),
    ),
    wild(
        "variance",
        "mean of squares less the square",
        F32,
        kernels.variance_by_squares,
        inputs=(kernels.shifted(F32)[0].detach().add(300).requires_grad_(),),
    ),
    wild("variance", "unbiased", F32, lambda x: kernels.wide(x).var(-1).to(x.dtype)),
    wild(
        "dots", "needs every gradient", F32, careless(kernels.dots, "needs every gradient"), "requires grad"
    ),
    wild(
        "capped",
        "slope of one",
        BF16,
        kernels.fused(
            kernels.capped, lambda found, g, inputs: [torch.where(inputs[0].abs() > 1.5, g, found[0])]
        ),
    ),
    wild("capped", "overflow", F16, kernels.capped_by_exp, "scale"),
    wild(
        "lse",
        "maximum not subtracted",
        F16,
        lambda x: kernels.wide(x).exp().sum(-1).log().to(x.dtype),
        "scale",
    ),
    wild("lse", "order of addition drawn", F32, kernels.scattered(kernels.lse), "again"),
    wild(
        "adapted",
        "scale missing in one gradient",
        BF16,
        kernels.fused(kernels.adapted, kernels.times(2, slice(None), 2.0)),
    ),
    wild(
        "adapted",
        "last column of the low rank",
        F32,
        lambda x, w, a, b: kernels.adapted(x, w, a, torch.cat([b[:, :-1], b[:, -1:] * 0.98], -1)),
    ),
]

WILD_TWINS = [
    *(
        wild(family, None, (F32, BF16, F16)[i % 3], kernels.fused(FAMILIES[family][0]))
        for i, family in enumerate(FAMILIES)
    ),
    *(
        wild(family, None, dtype, FAMILIES[family][1])
        for family in FAMILIES
        for dtype in (F32, BF16, F16)
        if family != "capped"
    ),
]
