"""Random numbers of a dtype, the same ones every time."""

import torch


def randn(*shape, dtype=torch.float32, seed=0):
    """Standard normal numbers, drawn in float64, that require grad."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
