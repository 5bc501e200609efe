"""Peers that have to be told how to run before they are loaded."""

from __future__ import annotations

import os
from typing import Any


def jax() -> Any:
    """JAX on one thread of the CPU, in double precision. XLA reads the flags once, when it is loaded."""
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax
