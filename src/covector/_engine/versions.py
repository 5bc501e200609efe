"""Which torch this is: what covector needs of it, and what differs between its releases.

Everything here asks for a name, never for a number: a release that has what is needed will do, whatever it
is called. A difference between releases that has to be bridged belongs into this file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pkgutil import resolve_name

import torch

from covector.errors import EngineError

# The releases that the tests were run with; `docs/versions.md` says how many of them, and when.
TESTED = ("2.9.1", "2.11.0", "2.13.0", "2.14.1", "2.15.0")

# The private names that the engine uses. Without one of them, covector is not loaded.
NEEDED = (
    # nesting levels
    "torch._C._functorch.TransformType.Grad",
    "torch._C._functorch.TransformType.Jvp",
    "torch._C._functorch.TransformType.Vmap",
    "torch._C._functorch._add_batch_dim",
    "torch._C._functorch._func_decrement_nesting",
    "torch._C._functorch._func_increment_nesting",
    "torch._C._functorch._grad_decrement_nesting",
    "torch._C._functorch._grad_increment_nesting",
    "torch._C._functorch._jvp_decrement_nesting",
    "torch._C._functorch._jvp_increment_nesting",
    "torch._C._functorch._propagate_functional_input_mutation",
    "torch._C._functorch._remove_batch_dim",
    "torch._C._functorch._set_vmap_fallback_warning_enabled",
    "torch._C._functorch._unwrap_for_grad",
    "torch._C._functorch._unwrap_functional_tensor",
    "torch._C._functorch._vmap_decrement_nesting",
    "torch._C._functorch._vmap_increment_nesting",
    "torch._C._functorch._wrap_for_grad",
    "torch._C._functorch._wrap_functional_tensor",
    "torch._C._functorch.get_inplace_requires_grad_allowed",
    "torch._C._functorch.get_dynamic_layer_stack_depth",
    "torch._C._functorch.get_interpreter_stack",
    "torch._C._functorch.get_unwrapped",
    "torch._C._functorch.is_batchedtensor",
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "torch._C._functorch.maybe_get_level",
    "torch._C._functorch.peek_interpreter_stack",
    "torch._C._functorch.set_inplace_requires_grad_allowed",
    "torch._C._functorch.unwrap_if_dead",
    "torch._functionalize_sync",
    "torch._is_functional_tensor",
    "torch._functorch.autograd_function.autograd_function_apply",
    "torch._functorch.eager_transforms.JVP_NESTING",
    "torch._functorch.eager_transforms._autograd_grad",
    "torch._functorch.eager_transforms._create_differentiable",
    "torch._functorch.eager_transforms.grad_increment_nesting",
    "torch._functorch.vmap.lazy_load_decompositions",
    "torch._C._are_functorch_transforms_active",
    "torch._functorch.utils.enable_single_level_autograd_function",
    "torch._C._vmapmode_decrement_nesting",
    "torch._C._vmapmode_increment_nesting",
    "torch._add_batch_dim",
    "torch._remove_batch_dim",
    # modes, and forward mode without a level
    "torch._C.DisableTorchFunction",
    "torch._C._autograd._saved_tensors_hooks_disable",
    "torch._C._autograd._saved_tensors_hooks_enable",
    "torch._C._autograd._saved_tensors_hooks_get_disabled_error_message",
    "torch._C._enter_dual_level",
    "torch._C._exit_dual_level",
    "torch._C._is_fwd_grad_enabled",
    "torch._C._len_torch_dispatch_stack",
    "torch._C._len_torch_function_stack",
    "torch._C._pop_torch_function_stack",
    "torch._C._push_on_torch_function_stack",
    "torch._C._set_fwd_grad_enabled",
    "torch._C._set_grad_enabled",
    "torch._VF._make_dual",
    "torch._VF._unpack_dual",
    "torch.autograd.forward_ad._current_level",
    # the autograd graph
    "torch._C._functions.AccumulateGrad._input_metadata",
    "torch._C._functions.UndefinedGrad",
    "torch.autograd.Function._backward_cls._forward_cls",
    "torch.autograd.Variable._execution_engine.run_backward",
    "torch._C._autograd._unsafe_set_version_counter",
    # the dispatcher
    "torch._C._IncludeDispatchKeyGuard",
    "torch._C._parse_dispatch_key",
    "torch._ops.HigherOrderOperator.fallthrough",
    "torch._ops._higher_order_ops",
    # tensors and their memory
    "torch.Tensor._backward_hooks",
    "torch.Tensor._base",
    "torch.Tensor._indices",
    "torch.Tensor._is_zerotensor",
    "torch.Tensor._values",
    "torch.Tensor._version",
    "torch.UntypedStorage._cdata",
    "torch._C.TensorBase",
    "torch._neg_view",
    "torch.utils._python_dispatch.TorchDispatchMode",
    # containers
    "torch.utils._pytree.keystr",
    "torch.utils._pytree.tree_flatten",
    "torch.utils._pytree.tree_leaves_with_path",
    "torch.utils._pytree.tree_unflatten",
    "torch.utils._pytree.treespec_pprint",
    # compilers
    "torch._C._dynamo.eval_frame._FrameAction.SKIP",
    "torch._C._dynamo.eval_frame._FrameExecStrategy",
    "torch._C._dynamo.eval_frame.set_code_exec_strategy",
    "torch._C._TorchDispatchModeKey.PROXY",
    "torch._C._get_dispatch_mode",
)

# What `covector.compile` needs for backend="inductor".
NEEDED_BY_INDUCTOR = ("torch._inductor.standalone_compile",)
# What a verb needs inside of `torch.compile` where it raises, or differentiates a custom Function.
NEEDED_BY_DYNAMO = (
    "torch._dynamo.graph_break",
    "torch._dynamo.symbolic_convert.InstructionTranslator.current_tx",
)
# What is known by its name only, and not loaded: where the Functions of compiled code are made, and where
# dynamo keeps signatures.
BY_NAME = ("torch._functorch._aot_autograd", "torch._dynamo.variables.functions._spec_cache")
# What newer releases are told when a dispatch mode is left.
USED_BY_MODES = (
    "torch.utils._python_dispatch._is_in_any_mode_without_ignore_compile_internals",
    "torch.utils._python_dispatch.set_is_in_mode_without_ignore_compile_internals",
)
# What a verb needs inside of `torch.export`.
NEEDED_BY_EXPORT = (
    "torch._ops._get_dispatch_mode_pre_dispatch",
    "torch.fx.experimental.proxy_tensor.ProxyTorchDispatchMode",
    "torch.fx.experimental.proxy_tensor._temp_remove_pre_dispatch_torch_function_mode",
)


def is_there(name: str) -> bool:
    """Whether this torch has something of this name, from `torch.` on."""
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def require(names: Iterable[str], what: str) -> None:
    """Raise an `EngineError` unless this torch has all these names, which `what` cannot do without."""
    missing = [name for name in names if not is_there(name)]
    if missing:
        raise EngineError(
            f"{what} does not work with torch {torch.__version__}, which has no {', '.join(missing)}. "
            f"It is known to work with torch {', '.join(TESTED)}. Install one of these, or look whether "
            "there is a newer covector for this torch."
        )
