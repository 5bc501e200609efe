"""`torch.export`: how our verbs look to it.

It traces above autograd, to keep operations such as `linear` whole and programs differentiable. A derivative
is computed below: there `linear` is a product with a transposed weight, which the pullback keeps,
and which a tracer that sits above has never seen. So within a verb the same tracer sits below autograd, as
that of `make_fx` does, and the program has the operations of the derivative.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch._C import _functorch, _TorchDispatchModeKey

from covector._engine import versions
from covector.errors import UnsupportedError


@contextmanager
def below_autograd() -> Iterator[None]:
    """Trace below autograd what is traced above it so far, if anything is.

    Raises:
        UnsupportedError: inside `torch.vmap`, which the tracer records as it is, with what comes out of it.
    """
    versions.require(versions.NEEDED_BY_EXPORT, "a derivative inside torch.export")
    from torch._ops import _get_dispatch_mode_pre_dispatch
    from torch.fx.experimental.proxy_tensor import (
        ProxyTorchDispatchMode,
        _temp_remove_pre_dispatch_torch_function_mode,
    )

    above = _get_dispatch_mode_pre_dispatch(_TorchDispatchModeKey.PROXY)
    if above is None:
        yield
        return
    if _functorch.peek_interpreter_stack() is not None:
        raise UnsupportedError(
            "torch.export cannot take a derivative inside torch.vmap. Call the verb on the whole batch (grad "
            "of the sum over the samples, jacobian or hessian with batch_dim=0), or put the vmap into the "
            "function that is differentiated."
        )
    below = ProxyTorchDispatchMode(
        above.tracer,
        above.tracing_mode,
        False,
        above._allow_fake_constant,
        above._error_on_data_dependent_ops,
    )
    # The other one would record changes of grad mode, of which nothing is left below.
    with _temp_remove_pre_dispatch_torch_function_mode(), below:
        yield
