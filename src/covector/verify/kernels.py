"""Operations that torch does not have for sparse tensors, as its errors name them."""

from __future__ import annotations

import re

# What torch says when it does not have an operation for sparse tensors, or not its derivative.
_LACKING = {
    r"Could not run '([^']+)' with arguments from the '((?:Sparse|Mkldnn)\w+)' backend": r"\1 on \2 tensors",
    r"derivative for (aten::_sparse\w+) is not implemented": r"a derivative of \1",
    r"(\w+) does not support automatic differentiation for outputs with complex dtype": (
        r"a derivative of \1 for complex numbers"
    ),
    r"Sparse (\w+) tensors do not have (strides|is_contiguous)": (
        r"an operation of this backward on \1 tensors"
    ),
    r"conversion from (Sparse\w*) to (Sparse\w+) for input tensors with sparse_dim\(\)!=2": (
        r"a conversion from \1 to \2 with batch dimensions"
    ),
    r"Expect the same number of specified elements per batch": (
        "a batch of compressed tensors that differ in their number of elements"
    ),
    r"unsupported tensor layout: (Sparse\w+)": r"an operation of this backward on \1 tensors",
    r"addmm: computation on \w+ is not implemented for (.+)": r"addmm for \1",
    r"Sparse division requires a scalar": "a division by a sparse tensor",
    r"cannot raise to zeroth power on sparse tensor": "the zeroth power of a sparse tensor",
}


def missing_kernel(error: Exception) -> str | None:
    """The operation that torch does not have for sparse tensors, if that is what this error says."""
    text = str(error)
    for said, meant in _LACKING.items():
        if found := re.search(said, text):
            return found.expand(meant)
    return None
