"""What every test starts from: one thread, the same random numbers, and no mistake that is hidden."""

import pytest
import torch

from covector.verify import forgiving

pytest_plugins = ["pytester"]

torch.set_num_threads(1)

# What a user is spared, a mistake in the explanation of a failure, a test must not be.
forgiving.RAISING = True


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(0)
