"""What libraries have beside their tests: a wrong function, a right one, and wrappers of gradcheck."""

import functools

import torch
from torch.autograd import gradcheck, gradgradcheck


class Double(torch.autograd.Function):
    """2 x, with the derivative of 3 x."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 3 * grad_output


def double(x):
    return Double.apply(x)


def assert_gradients(fn, *inputs, check=gradcheck):
    assert check(fn, inputs)


def assert_all_gradients(fn, *inputs):
    assert gradcheck(fn, inputs)
    assert gradgradcheck(fn, inputs)


loose = functools.partial(gradcheck, atol=1e-3)
CHECKS = [gradcheck, gradgradcheck]


def make_checker():
    kept = gradcheck
    return lambda fn, inputs: kept(fn, inputs)
