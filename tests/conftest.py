"""What every test starts from: one thread, and the same random numbers."""

import pytest
import torch

pytest_plugins = ["pytester"]

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(0)
