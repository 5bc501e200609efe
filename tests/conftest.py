"""What every test starts from: one thread, the same random numbers, and no mistake that is hidden."""

import gc
import os
from collections.abc import Generator

import pytest
import torch

from covector.checks import forgiving

pytest_plugins = ["pytester"]

torch.set_num_threads(1)

# What inductor compiles here is small: it has run before headers and probes of the processor were compiled.
os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"

# What a user is spared, a mistake in the explanation of a failure, a test must not be.
forgiving.RAISING = True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting makes a million objects that live until the end: they are not looked through for garbage.

    Neither now nor whenever a test makes garbage, which took a sixth of all processor time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """Those of the processor alone: `torch.manual_seed` writes a traceback down for each kind of device."""
    torch.default_generator.manual_seed(0)
