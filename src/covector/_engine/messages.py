"""What torch's errors and warnings say. Where torch rewords one, this file changes and no other.

Each function answers one question about an error. Where the text is a new one, the answer is no, and the
error reaches the caller as torch raised it.
"""

from __future__ import annotations

import re

from covector.errors import text_of

CUSTOM_FUNCTION = "a custom autograd.Function"

# Said of an operation that vmap applies point by point.
NO_BATCHING_RULE = re.compile("There is a performance drop")

# Said of a tensor that is made from memory which others own.
NOT_WRITABLE = "The given NumPy array is not writable"

# Said by a product of matrices, a convolution, or a recurrent layer.
_MIXED = re.compile(r"have the same dtype|type .* should be the same|expected scalar type \w+ but found")

# What torch says when it does not have an operation for sparse tensors, or the derivative of any.
_LACKING = {
    r"Could not run '([^']+)' with arguments from the '((?:Sparse|Mkldnn)\w+)' backend": r"\1 on \2 tensors",
    r"derivative for '?([\w:]+)'? is not implemented": r"a derivative of \1",
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
    r"is_coalesced expected sparse coordinate tensor layout": (
        "the second derivative by a sparse tensor along a dense one"
    ),
    r"(\w+) is not implemented for sparse tensors": r"\1 of sparse tensors",
    r"Sparse division requires a scalar": "a division by a sparse tensor",
    r"use_reentrant=True.* incompatible with \.grad\(\)": (
        "gradients by chosen tensors through checkpoint(use_reentrant=True); pass use_reentrant=False"
    ),
    r"cannot raise to zeroth power on sparse tensor": "the zeroth power of a sparse tensor",
}


def missing_kernel(error: Exception) -> str | None:
    """The operation that torch does not have, or not for sparse tensors, if that is what this error says."""
    text = text_of(error)
    for said, meant in _LACKING.items():
        if found := re.search(said, text):
            return found.expand(meant)
    return None


def missing_forward_rule(error: Exception) -> str | None:
    """The operation whose forward-mode rule torch misses, if that is what this error says."""
    text = text_of(error)
    if "implement the jvp function" in text:
        return CUSTOM_FUNCTION
    found = re.search(r"forward AD with (\S+) that does not support it", text)
    return found.group(1) if found else None


def rejects_tangent(error: BaseException) -> bool:
    """Whether torch does not take what the jvp of a custom Function returned."""
    return re.search(r"forward gradient|new_grad_base|for grad output \d", text_of(error)) is not None


def names_fused_attention(operation: str) -> bool:
    """Whether this is the name of a kernel of fused attention, or has it inside."""
    return "scaled_dot_product" in operation


def names_distances(operation: str) -> bool:
    """Whether this is the name of a kernel for distances, or has it inside."""
    return re.search(r"_[cp]dist_(forward|backward)", operation) is not None


def runs_higher_order(error: Exception) -> bool:
    """Whether an operator that takes functions was met by somebody who does not know it."""
    return "HigherOrderOperator" in text_of(error)


def has_inference_tensor(error: Exception) -> bool:
    """Whether a tensor made in inference mode was used where a graph is needed."""
    return "nference tensor" in text_of(error)


def mutates_captured(error: Exception) -> bool:
    """Whether the function would change a tensor from outside, inside a batch or a nested transform."""
    return "mutate a captured Tensor" in text_of(error)


def writes_to_leaf(error: Exception) -> bool:
    """Whether the function would change, in place, a leaf that requires grad."""
    return "leaf Variable that requires grad" in text_of(error)


def writes_to_unbatched(error: Exception) -> bool:
    """Whether a batch was to be written into a tensor that has not its axis."""
    return "vmap: inplace arithmetic" in text_of(error)


def draws_in_batch(error: Exception) -> bool:
    """Whether the function drew random numbers in a batch that was told to refuse that."""
    return "randomness error mode" in text_of(error)


def reads_beyond_storage(error: Exception) -> bool:
    """Whether the function looked beyond its input, into the rest of the storage that it is a view of."""
    return "out of bounds for storage" in text_of(error)


def is_out_of_memory(error: Exception) -> bool:
    """Whether the memory did not suffice."""
    texts = ("can't allocate memory", "out of memory")
    return isinstance(error, MemoryError) or any(text in text_of(error) for text in texts)


def mixes_dtypes(error: Exception) -> bool:
    """Whether an operation was given tensors of different dtypes."""
    return _MIXED.search(text_of(error)) is not None


def is_unsorted(error: Exception) -> bool:
    """Whether the indices of a compressed tensor are in no order, which its values do not mind."""
    return "sorted and distinct" in text_of(error)


def raised_while_traced(error: Exception) -> str | None:
    """What the traced code itself raised, if dynamo passes that on."""
    found = re.search(r"raised exception \w+\(\[?(['\"])(.*?)\1\]?\)", text_of(error), re.DOTALL)
    return found.group(2).rstrip(".") if found else None
