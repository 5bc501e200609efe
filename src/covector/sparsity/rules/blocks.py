"""Blocks: some axes are mixed completely, the others stay apart. FFT, solves, norms, attention."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from covector.sparsity.dependence import Dependence, united
from covector.sparsity.rules.lines import over
from covector.sparsity.rules.reductions import along, axes_of
from covector.sparsity.tracker import Dependences, NoRule, Operation, mixed


def fourier(operation: Operation) -> Dependences:
    """Every element along the transformed axes reads every one."""
    source = operation.moving("self")
    return [along([source], axes_of(operation["dim"], source.ids.ndim), operation.result.shape)]


def apart(operation: Operation, parts: Sequence[Dependence], lead: Sequence[int]) -> Dependences:
    """The parts have an element for each index of the leading axes; a result has it at all of its own.

    Results with other axes are numbers that are not differentiated: pivots, states, the weight of a loss.
    """
    joined, lead = united(parts, lead), tuple(lead)
    results: list[Dependence | None] = []
    for result in operation.results:
        if result is not None and result.shape[: len(lead)] == lead:
            ones = [1] * (result.ndim - len(lead))
            results.append(joined.reshape(*lead, *ones).expand(result.shape))
        elif result is not None and result.is_floating_point() and result.ndim and result.numel():
            raise NoRule
        else:
            results.append(None)
    return results


def matrices(operation: Operation) -> Dependences:
    """Functions of matrices: the last two axes are mixed, those before them are a batch."""
    tracked = list(operation.tracked())
    if any(tensor.ndim < 2 for tensor, _ in tracked):
        raise NoRule
    batch = max((tensor.shape[:-2] for tensor in operation.call.tensors() if tensor.ndim >= 2), key=len)
    return apart(operation, [over(part, [-1, -2], keepdim=False) for _, part in tracked], batch)


# Solvers: the matrix and the right-hand sides.
_SOLVES = {
    "linalg_solve_triangular": ("self", "B"),
    "_linalg_solve_ex": ("A", "B"),
    "linalg_lu_solve": ("LU", "B"),
    "cholesky_solve": ("input2", "self"),
    "triangular_solve": ("A", "self"),
    "linalg_ldl_solve": ("LD", "B"),
}


def solve(operation: Operation) -> Dependences:
    """A solution reads its own right-hand side, and all of the matrix."""
    matrix, sides = (operation[name] for name in _SOLVES[operation.name])
    moving = operation.dependence(sides)
    from_right = operation["left"] is False
    if operation.dependence(matrix) is not None or moving is None or from_right or sides.ndim != matrix.ndim:
        return matrices(operation)
    return [
        along([moving], [-2], r.shape)
        if r is not None and r.ndim == sides.ndim and r.is_floating_point()
        else None
        for r in operation.results
    ]


def layer_norm_backward(operation: Operation) -> Dependences:
    """By the input, mixed along the normalized axes; by weight and bias, summed over all others."""
    source: Tensor = operation["input"]
    inner = list(range(source.ndim - len(operation["normalized_shape"]), source.ndim))
    outer = [axis for axis in range(source.ndim) if axis not in inner]
    tracked = [part for _, part in operation.tracked() if part.ids.ndim == source.ndim]
    if len(tracked) != len(list(operation.tracked())):
        raise NoRule
    by_input, *by_rest = operation.results
    first = None if by_input is None else along(tracked, inner, by_input.shape)
    rest = [
        None if r is None else united([over(t, outer, keepdim=False) for t in tracked], r.shape)
        for r in by_rest
    ]
    return [first, *rest]


def batch_norm_backward(operation: Operation) -> Dependences:
    """Channels stay apart; in evaluation the elements of a channel do, too."""
    tracked = [part for _, part in operation.tracked()]
    ndim = operation["input"].ndim
    if any(part.ids.ndim != ndim for part in tracked):
        raise NoRule
    channel = united([over(part, _all_but(1, ndim), keepdim=True) for part in tracked], _channels(operation))
    by_input, *by_rest = operation.results
    return [
        None
        if by_input is None
        else united(tracked if not operation["train"] else [channel], by_input.shape),
        *(None if r is None else channel.reshape(-1) for r in by_rest),
    ]


def _all_but(axis: int, ndim: int) -> Sequence[int]:
    return [other for other in range(ndim) if other != axis]


def _channels(operation: Operation) -> list[int]:
    shape = operation["input"].shape
    return [size if axis == 1 else 1 for axis, size in enumerate(shape)]


def attention(operation: Operation) -> Dependences:
    """Heads stay apart: all else of a head is mixed."""
    tracked = [part for _, part in operation.tracked()]
    if any(part.ids.ndim != 4 for part in tracked):
        raise NoRule
    heads = [over(part, [-1, -2], keepdim=False) for part in tracked]
    return apart(operation, heads, heads[0].ids.shape)


def samples(operation: Operation) -> Dependences:
    """The first axis is one of samples, which stay apart; all else of a sample is mixed."""
    tracked = [part for _, part in operation.tracked()]
    count = operation.result.shape[:1]
    if not count or any(not part.ids.ndim for part in tracked):
        return mixed(operation)  # a mean over all samples
    if any(part.ids.shape[:1] != count for part in tracked):
        raise NoRule
    return apart(operation, [over(part, range(1, part.ids.ndim), keepdim=False) for part in tracked], count)


_MATRICES = (
    "linalg_inv_ex", "linalg_cholesky_ex", "_linalg_eigh", "_linalg_svd", "linalg_qr", "_linalg_det",
    "_linalg_slogdet", "linalg_lu", "linalg_lu_factor_ex", "linalg_matrix_exp", "cholesky_inverse",
    "linalg_eig", "linalg_pinv", "linalg_lstsq", "linalg_householder_product", "cholesky", "lu_unpack",
    "linalg_ldl_factor_ex", "geqrf", "ormqr",
)  # fmt: skip

_BY_SAMPLE = (
    "grid_sampler_2d", "grid_sampler_3d", "grid_sampler_2d_backward", "grid_sampler_3d_backward",
    "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward",
)  # fmt: skip

RULES = {
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), fourier),
    **dict.fromkeys(_MATRICES, matrices),
    **dict.fromkeys(_SOLVES, solve),
    **dict.fromkeys(_BY_SAMPLE, samples),
    "native_layer_norm_backward": layer_norm_backward,
    "_fused_rms_norm_backward": layer_norm_backward,
    "native_batch_norm_backward": batch_norm_backward,
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention,
}
