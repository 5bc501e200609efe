"""Sparse plans whose products an executor computes."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from executor_functions import POINT, Posting, chain, energy, processes

import covector
from covector.errors import ArgumentTypeError, RandomnessError, SendError


def arrow(x):
    """A row and a column that are full, and a diagonal: both modes together need fewest products."""
    return torch.cat([x.sum().reshape(1), x[1:] * x[0]])


def tree(p):
    return {"a": p["u"][1:] * p["u"][:-1], "b": p["v"].sin()}


PLANS = {
    "reverse": lambda: covector.jacobian_plan(chain, POINT, mode="reverse", chunk_size=1),
    "forward": lambda: covector.jacobian_plan(chain, POINT, mode="forward", chunk_size=1),
    "both": lambda: covector.jacobian_plan(arrow, POINT, chunk_size=1),
    "hessian": lambda: covector.hessian_plan(energy, POINT, chunk_size=1),
    "trees": lambda: covector.jacobian_plan(tree, {"u": POINT, "v": POINT.float()}, chunk_size=1),
    "nothing": lambda: covector.jacobian_plan(lambda x: torch.ones(3) + 0 * x[:0].sum(), POINT),
}
POINTS = {"trees": {"u": POINT.cos(), "v": POINT.cos().float()}}


@pytest.mark.parametrize("name", PLANS)
def test_products_are_those_of_a_serial_run(name):
    """The same bits, with a task for each product."""
    plan, point = PLANS[name](), POINTS.get(name, POINT.cos())
    far = Posting()
    for executor in (far, ThreadPoolExecutor(2)):
        assert torch.equal(plan.with_executor(executor).values(point), plan.values(point))
    assert len(far.tasks) == plan.coloring.products


def test_the_sparse_doors_take_an_executor():
    """Threads, other processes, and what pickles everything: the same bits as without."""
    for verb, function in ((covector.sparse_jacobian, chain), (covector.sparse_hessian, energy)):
        expected, far = verb(function)(POINT).to_dense(), Posting()
        with ThreadPoolExecutor(2) as threads, processes() as process:
            for executor in (threads, process, far):
                derivative = verb(function, chunk_size=1, executor=executor)
                assert torch.equal(derivative(POINT).to_dense(), expected)
                assert torch.equal(derivative(POINT.cos()).to_dense(), verb(function)(POINT.cos()).to_dense())
        assert len(far.tasks) == 2 * derivative.plan.coloring.products
        with pytest.raises(ArgumentTypeError, match=f"{verb.__name__}: executor must be a concurrent"):
            verb(function, executor=3)


def test_a_value_comes_along():
    """From a run in this process."""
    plan = PLANS["hessian"]()
    value, matrix = plan.with_executor(Posting()).value_and_jacobian(POINT)
    assert torch.equal(value, energy(POINT))
    assert torch.equal(matrix.to_dense(), plan(POINT).to_dense())


def test_inside_a_transform_products_are_computed_here():
    """Their results have to carry a graph there."""
    far = Posting()
    plan = covector.jacobian_plan(chain, POINT).with_executor(far)
    stacked = torch.vmap(plan.values)(torch.stack([POINT, POINT.cos()]))
    assert torch.equal(stacked[1], plan.values(POINT.cos()))
    assert len(far.tasks) == plan.coloring.products


def test_mistakes_are_named():
    """The same as with a dense Jacobian."""
    plan = covector.jacobian_plan(chain, POINT)
    with pytest.raises(ArgumentTypeError, match="jacobian_plan: executor must be a concurrent"):
        plan.with_executor(3)
    stream = iter([1.0])
    stubborn = covector.jacobian_plan(lambda x: chain(x) * (1.0 if stream else 2.0), POINT)
    assert stubborn.with_executor(Posting()).values(POINT) is not None  # a list's iterator can be sent
    generator = (one for one in [1.0])
    stubborn = covector.jacobian_plan(lambda x: chain(x) * (1.0 if generator else 2.0), POINT)
    with pytest.raises(SendError, match=r"<lambda>: generator \(generator\): cannot pickle"):
        stubborn.with_executor(Posting()).values(POINT)


def test_a_function_that_draws_is_refused():
    """Each block would see other numbers."""
    eye = torch.eye(30)
    plan = covector.jacobian_plan(lambda x: x * torch.rand(30), POINT, pattern=eye, verify=False)
    with pytest.raises(RandomnessError, match="each block would see its own"):
        plan.with_executor(Posting()).values(POINT)
