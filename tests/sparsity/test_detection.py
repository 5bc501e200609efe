"""Detection: no entry is ever missing, and on most functions none is too many."""

import functools
import gc
import warnings

import numpy
import pytest
import torch
from sparse_functions import FUNCTIONS, ShiftedSquare, burgers

import covector
from covector._tree import flatten, select_all
from covector.errors import Caller, DataDependenceError, ResourceError
from covector.sparsity import detect as detection
from covector.sparsity.detect import detect
from covector.sparsity.rules.table import FAMILIES, RULES
from covector.transforms._door import accept_differentiable, check_primals, runner

# Points whose Jacobians are united: enough for a choice among four to have gone every way.
# Where the first ones have the same entries, there is no choice.
POINTS, FIRST = 30, 8


def dense_jacobian(function, x):
    """Row by row from the graph, by torch alone."""
    x = x.clone().requires_grad_()
    rows = []
    for output in flatten(function(x))[0]:
        for element in output.reshape(-1):
            row = None
            if element.requires_grad:
                (row,) = torch.autograd.grad(element, x, retain_graph=True, allow_unused=True)
            rows.append((torch.zeros_like(x) if row is None else row).reshape(-1))
    return torch.stack(rows) if rows else torch.zeros(0, x.numel(), dtype=x.dtype)


@functools.cache
def true_pattern(case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [entries(case, seed) for seed in range(FIRST)]
        if not all(torch.equal(one, found[0]) for one in found):
            found += [entries(case, seed) for seed in range(FIRST, POINTS)]
    return covector.SparsityPattern.of(torch.stack(found).any(0))


def entries(case, seed):
    return dense_jacobian(case.function, case.at(seed)).abs() > 1e-13


def problem(function, *args):
    caller = Caller("sparsity", function)
    arguments = check_primals(caller, select_all(args))
    return caller, runner(caller, arguments, accept_differentiable, has_aux=False), arguments


@pytest.mark.parametrize("case", FUNCTIONS, ids=str)
def test_no_entry_is_missing(case):
    """The pattern covers the union of dense Jacobians at many points; most have no entry more."""
    found = detect(*problem(case.function, case.at(1000)), local=False)
    assert found.pattern.covers(true_pattern(case)), found.pattern.missing(true_pattern(case))
    assert case.exact is None or (found.pattern == true_pattern(case)) == case.exact
    assert not found.fallbacks


@pytest.mark.parametrize("case", FUNCTIONS, ids=str)
def test_no_entry_is_missing_in_the_reverse_program(case):
    """The program that pulls back is followed where forward mode has no rule; it has rules of its own."""
    caller, run, arguments = problem(case.function, case.at(1000))
    found = detection._follow(caller, run, arguments, detection._pulled, "reverse", local=False).found
    assert found.pattern.covers(true_pattern(case)), found.pattern.missing(true_pattern(case))
    assert not found.fallbacks


def test_there_are_enough_functions():
    assert len(FUNCTIONS) >= 40
    assert sum(case.exact is True for case in FUNCTIONS) >= 60
    assert all(family.RULES for family in FAMILIES)


def test_the_pattern_does_not_depend_on_the_point():
    """At zero every product of a stencil vanishes, and no entry with it."""
    assert covector.sparsity(burgers, torch.zeros(8)) == covector.sparsity(burgers, torch.randn(8))
    assert covector.sparsity(lambda x: torch.relu(x), torch.full((3,), -1.0)).nnz == 3
    assert covector.sparsity(lambda x: x * (x > 5), torch.zeros(3)).nnz == 3


def test_arguments_that_are_not_differentiated_by_are_unknown():
    """A zero in one of them is not a zero at another point."""
    pattern = covector.sparsity(lambda x, y: x * y, torch.ones(3), torch.zeros(3))
    assert pattern.nnz == 3


def test_parameters_are_unknown_and_other_constants_are_not():
    """A weight that is zero will be trained; a mask stays what it is."""
    weight = torch.zeros(3, requires_grad=True)
    assert covector.sparsity(lambda x: x * weight, torch.ones(3)).nnz == 3
    assert covector.sparsity(lambda x: x * weight.detach(), torch.ones(3)).nnz == 3
    assert covector.sparsity(lambda x: x * torch.tensor([1.0, 0.0, 2.0]), torch.ones(3)).nnz == 2


BRANCHES = {
    "item": lambda x: x * 2 if x[0].item() > 0 else x.roll(1),
    "bool": lambda x: x * 2 if x.sum() > 0 else x.roll(1),
    "float": lambda x: x * float(x[0]),
    "nonzero": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "numpy": lambda x: x * torch.from_numpy((x.detach().numpy() > 0).astype("float64")),
    "asarray": lambda x: x * torch.from_numpy(numpy.asarray(x.detach()).round()),
    "tolist": lambda x: x * x.detach().tolist()[0],
    "equal": lambda x: x if torch.equal(x, x.round()) else x.flip(0),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_on_numbers_are_refused_by_name(name):
    """With `local` it is the pattern of the path that is taken here."""
    x = torch.tensor([1.5, -2.0, 3.0], dtype=torch.float64)
    with pytest.raises(DataDependenceError, match="local=True"):
        covector.sparsity(BRANCHES[name], x)
    local = covector.sparsity(BRANCHES[name], x, local=True)
    assert local.covers(covector.SparsityPattern.of(dense_jacobian(BRANCHES[name], x)))


def test_a_branch_on_a_constant_is_none():
    size = torch.tensor(3)
    assert covector.sparsity(lambda x: x * 2 if size.item() > 2 else x.sum(), torch.ones(3)).nnz == 3


def test_an_operation_without_a_rule_mixes_what_it_touches():
    """It is named, and nothing beyond what it touches is mixed. Forward mode would lose its tangent."""

    @torch.library.custom_op("covector_tests::mixed", mutates_args=())
    def mixed(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0)

    mixed.register_autograd(lambda ctx, gradient: opposite(gradient))

    @torch.library.custom_op("covector_tests::opposite", mutates_args=())
    def opposite(x: torch.Tensor) -> torch.Tensor:
        return x.flip(0).cumsum(0).flip(0)

    def mixes_three(x):
        return torch.cat([mixed(x[:3]), x[3:] ** 2])

    found = detect(*problem(mixes_three, torch.rand(5)), local=False)
    assert found.pattern.to_dense().int().tolist() == [
        [1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1],
    ]  # fmt: skip
    assert found.fallbacks == {"covector_tests.opposite": 1}


def test_mixing_everything_costs_nothing():
    """A set of all inputs is not written out: a million rows that all depend on a million inputs."""
    with pytest.raises(ResourceError, match="not sparse"):
        covector.sparsity(lambda x: (x - x.mean()) * x.norm(), torch.rand(1_000_000))


def test_more_entries_than_are_told_apart(monkeypatch):
    """What was taken for full is not called full without a word."""
    monkeypatch.setattr("covector.sparsity.dependence.MOST_TOLD_APART", 1000)
    with pytest.raises(ResourceError, match="or it has so many entries that they were not told apart"):
        covector.sparsity(lambda x: x * x.roll(1), torch.rand(30_000))


def test_the_custom_jvp_is_what_is_followed():
    """Not the formula of the forward pass, which has the same pattern here, but the rule of the Function."""
    assert covector.sparsity(ShiftedSquare.apply, torch.zeros(5)).nnz == 10

    class Diagonal(ShiftedSquare):
        @staticmethod
        def jvp(ctx, tangent):
            return tangent * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    assert covector.sparsity(Diagonal.apply, torch.zeros(5)).nnz == 5


def test_inputs_stay_as_they_are():
    """A function that works in place on its argument is given a copy."""
    x = torch.arange(4.0)
    covector.sparsity(lambda x: x.mul_(2).add_(x.roll(1)), x)
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert not x.requires_grad


# Operations that torch has dropped, and the first release without them.
DROPPED = {"cholesky": (2, 14)}


def test_rules_are_for_operations_that_exist():
    """A name that torch does not know is a rule that is never used, unless older releases know it."""
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    unknown = [name for name in RULES if not hasattr(torch.ops.aten, name)]
    assert unknown == [name for name, since in DROPPED.items() if release >= since]


@pytest.mark.parametrize("name", ["burgers", "sort", "lists of tensors", "folded columns", "scatter_add"])
def test_what_was_followed_is_released_at_once(name):
    """Not when garbage is collected: a large program would be held beside what is computed next."""
    case = next(case for case in FUNCTIONS if str(case) == name)
    covector.sparsity(case.function, case.at(0))  # what is cached is no garbage
    gc.disable()
    gc.freeze()  # what there is already is not looked through
    try:
        covector.sparsity(case.function, case.at(0))
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kept = [type(each).__name__ for each in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()
    assert not {"Tracker", "Storages", "Operation"} & set(kept)
