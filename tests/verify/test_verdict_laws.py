"""Laws of a verdict: what it depends on (the entry rule), and all that it must not depend on.

Every function here is made from a random matrix, so its exact Jacobian T is known, and so is the one its
derivative claims, A. With one number for what is allowed, atol + rtol |T|, each entry is right or wrong by
construction, and far enough from the threshold on either side that no precision is needed to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import Function

import covector
from covector import Report
from covering import examples
from watched import marks

pytestmark = pytest.mark.usefixtures("all_unexplained")

# Outcomes, as a report gives them.
PASSED, FAILED = "passed", "failed"

REVERSE: dict[str, Any] = {}
FORWARD = {"check_forward_ad": True, "check_backward_ad": False}
each_mode = pytest.mark.parametrize("mode", [REVERSE, FORWARD], ids=["reverse", "forward"])
each_speed = pytest.mark.parametrize("fast", [False, True], ids=["exhaustive", "fast"])


# A function with a known Jacobian, and a derivative that claims another one


def bent(x: Tensor) -> Tensor:
    """A smooth function of each number."""
    return x + 0.5 * x.sin()


def slope(x: Tensor) -> Tensor:
    """The derivative of that, between one half and one and a half."""
    return 1 + 0.5 * x.cos()


@dataclass(frozen=True)
class Part:
    """One tensor among the inputs or outputs: its shape, and whether it is complex."""

    name: str
    shape: tuple[int, ...]
    complex: bool = False

    @property
    def size(self) -> int:
        """How many real coordinates it has."""
        return torch.Size(self.shape).numel() * (2 if self.complex else 1)

    def tensor(self, coordinates: Tensor) -> Tensor:
        """The tensor with these coordinates."""
        if self.complex:
            return torch.view_as_complex(coordinates.reshape(*self.shape, 2).clone())
        return coordinates.reshape(self.shape)

    def labels(self) -> Iterator[str]:
        """What a report calls each of its coordinates."""
        for index in torch.cartesian_prod(*(torch.arange(size) for size in (1, *self.shape))).reshape(
            -1, len(self.shape) + 1
        ):
            at = f"[{', '.join(str(i) for i in index[1:].tolist())}]" if self.shape else ""
            yield from (f"{self.name}{at}{part}" for part in ((".real", ".imag") if self.complex else ("",)))


def coordinates_of(tensors: tuple[Tensor, ...]) -> Tensor:
    """All real numbers of these tensors in one vector.

    The gradient of `view_as_real` is a view, which torch refuses at an odd offset; that of a stack is not.
    """
    pairs = (torch.stack([t.real, t.imag], -1) if t.is_complex() else t for t in tensors)
    return torch.cat([pair.reshape(-1) for pair in pairs])


@dataclass(frozen=True)
class Map:
    """y = J bent(x), or y = bent(J x); its derivative takes `believed` for J, and adds `error`."""

    J: Tensor
    believed: Tensor
    error: Tensor
    bends_rows: bool
    inputs: tuple[Part, ...]
    outputs: tuple[Part, ...]
    x: Tensor

    @property
    def truth(self) -> Tensor:
        """The Jacobian of the function."""
        return self._jacobian(self.J)

    @property
    def claimed(self) -> Tensor:
        """The Jacobian that its derivative gives."""
        return self._jacobian(self.believed) + self.error

    def _jacobian(self, matrix: Tensor) -> Tensor:
        return slope(self.J @ self.x)[:, None] * matrix if self.bends_rows else matrix * slope(self.x)

    def value(self, x: Tensor) -> Tensor:
        """The function of the coordinates."""
        return bent(self.J @ x) if self.bends_rows else self.J @ bent(x)

    def pull(self, x: Tensor, v: Tensor) -> Tensor:
        """The pullback that its derivative gives."""
        if self.bends_rows:
            return (v * slope(self.J @ x)) @ self.believed + v @ self.error
        return (v @ self.believed) * slope(x) + v @ self.error

    def push(self, x: Tensor, u: Tensor) -> Tensor:
        """The push that its derivative gives."""
        if self.bends_rows:
            return slope(self.J @ x) * (self.believed @ u) + self.error @ u
        return self.believed @ (slope(x) * u) + self.error @ u

    def primals(self, parts: tuple[Part, ...] | None = None) -> tuple[Tensor, ...]:
        """The inputs, fresh."""
        parts = parts or self.inputs
        pieces = self.x.clone().split([part.size for part in parts])
        return tuple(
            part.tensor(piece).clone().requires_grad_() for part, piece in zip(parts, pieces, strict=True)
        )

    def of_tensors(self, core: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
        """A function of coordinates as one of the tensors that have them."""

        def function(*primals: Tensor) -> Any:
            pieces = core(coordinates_of(primals)).split([part.size for part in self.outputs])
            made = tuple(part.tensor(piece) for part, piece in zip(self.outputs, pieces, strict=True))
            return made if len(made) > 1 else made[0]

        # Names by which a report calls the inputs.
        return {
            1: lambda a: function(a),
            2: lambda a, b: function(a, b),
            3: lambda a, b, c: function(a, b, c),
        }[len(self.inputs)]


# Ways to write it: some can be batched, some cannot


def plain(map: Map) -> Callable[[Tensor], Tensor]:
    """Operations of torch alone: what the derivative does not know of is detached."""

    def core(x: Tensor) -> Tensor:
        inner = x if map.bends_rows else bent(x)
        y = map.believed @ inner + (map.J - map.believed) @ inner.detach()
        return (bent(y) if map.bends_rows else y) + map.error @ (x - x.detach())

    return core


def asks_for_a_number(map: Map) -> Callable[[Tensor], Tensor]:
    """The same, and it looks at a value, which a batch does not have."""
    inner = plain(map)

    def core(x: Tensor) -> Tensor:
        x.sum().item()
        return inner(x)

    return core


def function_of(map: Map, **members: Any) -> Callable[[Tensor], Tensor]:
    """A Function with a context set up apart, as torch's transforms want it."""

    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    rule = type(
        "Rule",
        (Function,),
        {
            "forward": staticmethod(map.value),
            "setup_context": staticmethod(setup_context),
            "backward": staticmethod(lambda ctx, v: map.pull(ctx.saved_tensors[0], v)),
            "jvp": staticmethod(lambda ctx, u: map.push(ctx.saved_tensors[0], u)),
            **members,
        },
    )
    return rule.apply


def with_generated_rule(map: Map) -> Callable[[Tensor], Tensor]:
    """A Function for which torch makes the batching rule."""
    return function_of(map, generate_vmap_rule=True)


def with_own_rule(map: Map) -> Callable[[Tensor], Tensor]:
    """A Function that has a batching rule of its own."""

    def rule(info: Any, in_dims: tuple[Any], x: Tensor) -> tuple[Tensor, int]:
        return torch.stack([apply(row) for row in x.movedim(in_dims[0], 0).unbind(0)]), 0

    apply = function_of(map, vmap=staticmethod(rule))
    return apply


def legacy(map: Map, value: Callable[[Tensor], Tensor] | None = None) -> Callable[[Tensor], Tensor]:
    """A Function of the old kind, which has no batching rule."""

    class Legacy(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return (value or map.value)(x)

        @staticmethod
        def backward(ctx: Any, v: Tensor) -> Tensor:
            return map.pull(ctx.saved_tensors[0], v)

        @staticmethod
        def jvp(ctx: Any, u: Tensor) -> Tensor:
            return map.push(ctx.saved_tensors[0], u)

    return Legacy.apply


def through_numpy(map: Map) -> Callable[[Tensor], Tensor]:
    """A Function that computes its value in NumPy."""
    return legacy(map, lambda x: torch.from_numpy(map.value(x).detach().numpy().copy()))


WAYS = {
    "operations": plain,
    "generated batching rule": with_generated_rule,
    "own batching rule": with_own_rule,
    "asks for a number": asks_for_a_number,
    "legacy Function": legacy,
    "NumPy inside": through_numpy,
}
modes = st.sampled_from([REVERSE, FORWARD])
ways = st.sampled_from(list(WAYS))
batched_or_not = st.sampled_from(["operations", "legacy Function"])


# Random maps and random faults


@dataclass(frozen=True)
class Rule:
    """The entry rule."""

    atol: float = 1e-5
    rtol: float = 1e-3

    def allowed(self, truth: Tensor) -> Tensor:
        """How far each entry may be off."""
        return self.atol + self.rtol * truth.abs()

    @property
    def keywords(self) -> dict[str, float]:
        """As keywords of a check."""
        return {"atol": self.atol, "rtol": self.rtol}


RULES = (Rule(), Rule(1e-3, 0.0), Rule(1e-6, 1e-2), Rule(1e-4, 1e-4))
SIZES = {
    "one number": ((1, 1), (1, 1)),
    "dense": ((2, 12), (2, 12)),
    "banded": ((3, 40), (3, 40)),
    "diagonal": ((2, 40), (2, 40)),
    "sparse": ((3, 40), (3, 40)),
    "tall": ((12, 40), (1, 4)),
    "wide": ((1, 4), (12, 40)),
    "very wide": ((2, 4), (100, 150)),
}


each_structure = pytest.mark.parametrize("structure", SIZES)


def filled(structure: str, rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """A random matrix with the zeros of its structure."""
    J = torch.randn(rows, columns, dtype=torch.float64, generator=generator) / columns**0.5
    if structure in ("banded", "diagonal"):
        distance = (torch.arange(rows)[:, None] - torch.arange(columns)).abs()
        J = J * (distance <= (1 if structure == "banded" else 0))
    if structure == "sparse":
        J = J * (torch.rand(rows, columns, generator=generator) < 0.1)
    return J


@st.composite
def parts_of(draw: st.DrawFn, total: int, names: Callable[[int, int], str]) -> tuple[Part, ...]:
    """Up to three tensors that have this many coordinates together."""
    cuts = sorted(draw(st.sets(st.integers(1, total - 1), max_size=2))) if total > 1 else []
    sizes = [stop - start for start, stop in zip([0, *cuts], [*cuts, total], strict=True)]
    parts = []
    for index, size in enumerate(sizes):
        is_complex = size % 2 == 0 and draw(st.integers(0, 2)) > 0
        count = size // 2 if is_complex else size
        shapes = [(count,), *([(2, count // 2)] if count % 2 == 0 else []), *([()] if count == 1 else [])]
        parts.append(Part(names(index, len(sizes)), draw(st.sampled_from(shapes)), is_complex))
    return tuple(parts)


def input_name(index: int, count: int) -> str:
    return "abc"[index]


def output_name(index: int, count: int) -> str:
    return "output" if count == 1 else f"output[{index}]"


@st.composite
def maps(draw: st.DrawFn, structures: tuple[str, ...] = tuple(SIZES)) -> Map:
    """A function whose derivative is right."""
    structure = draw(st.sampled_from(structures))
    rows, columns = (draw(st.integers(*bounds)) for bounds in SIZES[structure])
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    J = draw(st.sampled_from([1.0, 1e-2, 1e2])) * filled(structure, rows, columns, generator)
    return Map(
        J,
        J,
        torch.zeros_like(J),
        draw(st.booleans()),
        draw(parts_of(columns, input_name)),
        draw(parts_of(rows, output_name)),
        torch.randn(columns, dtype=torch.float64, generator=generator),
    )


@dataclass(frozen=True)
class Fault:
    """What is wrong with a derivative: which entries, and where."""

    kind: str
    row: int
    column: int
    seed: int

    def planted(self, map: Map, rule: Rule, share: float) -> Map:
        """The map with entries off by this share of what is allowed."""
        return getattr(self, f"_{self.kind}")(map, rule, share)

    def _at(self, map: Map) -> tuple[int, int]:
        return self.row % map.J.shape[0], self.column % map.J.shape[1]

    def _masked(self, map: Map, rule: Rule, share: float, *index: Any) -> Map:
        mask = torch.zeros_like(map.J)
        mask[index] = share
        signs = torch.randint(0, 2, mask.shape, generator=torch.Generator().manual_seed(self.seed)) * 2 - 1
        return replace(map, error=mask * signs * rule.allowed(map.truth))

    def _entry(self, map: Map, rule: Rule, share: float) -> Map:
        return self._masked(map, rule, share, *self._at(map))

    def _whole_row(self, map: Map, rule: Rule, share: float) -> Map:
        return self._masked(map, rule, share, self._at(map)[0])

    def _whole_column(self, map: Map, rule: Rule, share: float) -> Map:
        return self._masked(map, rule, share, slice(None), self._at(map)[1])

    def _everything(self, map: Map, rule: Rule, share: float) -> Map:
        return self._masked(map, rule, share)

    def _factor(self, map: Map, rule: Rule, share: float) -> Map:
        """The largest entry is off by the share of what is allowed, the others in proportion or less."""
        largest = float(map.truth.abs().max())
        if not largest:
            return self._entry(map, rule, share)
        factor = share * float(rule.allowed(torch.tensor(largest, dtype=torch.float64))) / largest
        if share < 1:
            factor = min(factor, share * rule.rtol)
        return replace(map, believed=map.J * (1 + factor))

    def _missing(self, map: Map, rule: Rule, share: float) -> Map:
        """The function has one more entry, of the size that is the share of what is allowed."""
        at = self._at(map)
        believed = map.J.clone()
        believed[at] = 0.0
        without = replace(map, J=believed, believed=believed)
        bend = slope(believed @ map.x)[at[0]] if map.bends_rows else slope(map.x)[at[1]]
        J = believed.clone()
        J[at] = share * rule.atol / (1 - share * rule.rtol) / bend
        return replace(without, J=J)

    def _dropped(self, map: Map, rule: Rule, share: float) -> Map:
        """The derivative lacks one entry that the function has, however large."""
        at = map.J.abs().flatten().argmax()
        if share < 1 or float(map.truth.abs().max()) <= 2 * float(rule.allowed(map.truth).max()):
            return self._entry(map, rule, share)
        believed = map.J.clone()
        believed.view(-1)[at] = 0.0
        return replace(map, believed=believed)


SINGLE = ("entry", "missing", "dropped")
SEVERAL = ("factor", "whole_row", "whole_column", "everything")


def faults(*kinds: str) -> st.SearchStrategy[Fault]:
    index = st.integers(0, 149)  # of a smaller matrix, what remains of it
    return st.builds(Fault, st.sampled_from(kinds), index, index, st.integers(0, 2**31))


rules = st.sampled_from(RULES)


def checked(map: Map, way: str, rule: Rule, **keywords: Any) -> Report:
    """What a check says about the map, written in this way."""
    return covector.check(map.of_tensors(WAYS[way](map)), map.primals(), **rule.keywords, **keywords)


def named(report: Report) -> set[tuple[int, int]]:
    """Row and column of each entry that a report calls wrong."""
    failed = [finding for finding in report.findings if finding.outcome == FAILED]
    return {(m.row, m.column) for finding in failed for m in finding.mismatches}


def wrong_entries(map: Map, rule: Rule) -> set[tuple[int, int]]:
    """Row and column of each entry that is wrong."""
    wrong = (map.claimed - map.truth).abs() > 0.999 * rule.allowed(map.truth)
    return {(int(row), int(column)) for row, column in wrong.nonzero()}


# The entry rule


@each_speed
@each_structure
@examples(2)
@given(way=ways, mode=modes, data=st.data(), fault=faults(*SINGLE), rule=rules)
def test_one_entry_off_by_twice_what_is_allowed_fails_and_is_named(
    way: str, structure: str, fast: bool, mode: dict[str, Any], data: st.DataObject, fault: Fault, rule: Rule
) -> None:
    """The report fails, and names this entry and no other, by its place and by its labels."""
    wrong = fault.planted(data.draw(maps((structure,))), rule, 2.0)
    report = checked(wrong, way, rule, fast_mode=fast, **mode)
    assert report.outcome == FAILED
    (at,) = wrong_entries(wrong, rule)
    assert named(report) == {at}
    (mismatch,) = report.worst.mismatches
    assert mismatch.entry.output == [label for part in wrong.outputs for label in part.labels()][at[0]]
    assert mismatch.entry.input == [label for part in wrong.inputs for label in part.labels()][at[1]]
    slack = 0.1 * float(rule.allowed(wrong.truth)[at])
    assert mismatch.analytic == pytest.approx(float(wrong.claimed[at]), abs=slack)
    assert mismatch.numeric == pytest.approx(float(wrong.truth[at]), abs=slack)


@each_speed
@each_structure
@examples(2)
@given(way=ways, mode=modes, data=st.data(), fault=faults(*SINGLE, *SEVERAL), rule=rules)
def test_entries_off_by_half_of_what_is_allowed_pass(
    way: str, structure: str, fast: bool, mode: dict[str, Any], data: st.DataObject, fault: Fault, rule: Rule
) -> None:
    """One of them, a row, a column or all of them: the rule is about each entry by itself."""
    map = fault.planted(data.draw(maps((structure,))), rule, 0.5)
    report = checked(map, way, rule, fast_mode=fast, **mode)
    assert report.outcome == PASSED


@each_speed
@each_structure
@examples(2)
@given(way=ways, mode=modes, data=st.data(), fault=faults(*SEVERAL), rule=rules)
def test_several_wrong_entries_fail_and_no_right_one_is_named(
    way: str, structure: str, fast: bool, mode: dict[str, Any], data: st.DataObject, fault: Fault, rule: Rule
) -> None:
    """A wrong factor, row or column, or all entries off in random directions."""
    wrong = fault.planted(data.draw(maps((structure,))), rule, 2.0)
    report = checked(wrong, way, rule, fast_mode=fast, **mode)
    assert report.outcome == FAILED
    assert named(report)
    assert named(report) <= wrong_entries(wrong, rule)


@each_speed
@each_mode
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_a_small_entry_is_not_hidden_by_large_ones(scale: float, mode: dict[str, Any], fast: bool) -> None:
    """An entry of twice what is allowed, which the derivative lacks, beside three hundred large ones."""
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        believed = scale * filled("dense", 3, 101, generator)
        believed[0, 0] = 0.0
        missing = torch.zeros_like(believed)
        missing[0, 0] = 2.1e-5
        x = torch.randn(101, dtype=torch.float64, generator=generator).requires_grad_()
        report = covector.check(lambda x: believed @ x + missing @ x.detach(), x, fast_mode=fast, **mode)
        assert report.outcome == FAILED
        assert named(report) == {(0, 0)}


@each_speed
@examples(4)
@given(way=ways, map=maps(), rule=rules)
def test_what_is_right_passes_in_both_modes_at_once(way: str, fast: bool, map: Map, rule: Rule) -> None:
    """Without a fault every check of the report passes, and nothing is named."""
    report = checked(map, way, rule, fast_mode=fast, check_forward_ad=True)
    assert report.outcome == PASSED
    assert not any(finding.mismatches for finding in report.findings)


@each_mode
@examples(3)
@given(map=maps(), fault=faults(*SINGLE), rule=rules)
def test_only_the_mode_that_is_wrong_fails(mode: dict[str, Any], map: Map, fault: Fault, rule: Rule) -> None:
    """With a wrong pullback and a right push, or the other way round, the report says which."""
    wrong = fault.planted(map, rule, 2.0)
    right = replace(wrong, believed=wrong.J, error=torch.zeros_like(wrong.J))
    jvp = staticmethod(lambda ctx, u: (right if mode is REVERSE else wrong).push(ctx.saved_tensors[0], u))
    backward = staticmethod(
        lambda ctx, v: (wrong if mode is REVERSE else right).pull(ctx.saved_tensors[0], v)
    )
    function = function_of(wrong, generate_vmap_rule=True, backward=backward, jvp=jvp)
    report = covector.check(
        wrong.of_tensors(function), wrong.primals(), check_forward_ad=True, **rule.keywords
    )
    failed = [finding.check for finding in report.findings if finding.outcome == FAILED]
    assert failed == ["reverse mode" if mode is REVERSE else "forward mode"]


# What a verdict does not depend on


shares = st.sampled_from([0.0, 0.5, 2.0, 50.0])
every_fault = faults(*SINGLE, *SEVERAL)


def verdict(function: Any, inputs: Any, rule: Rule, **keywords: Any) -> str:
    """The outcome of `gradcheck` that raises."""
    try:
        assert covector.gradcheck(function, inputs, **rule.keywords, **keywords) is True
    except covector.GradcheckError as error:
        return error.report.outcome
    return PASSED


@each_mode
@examples(2)
@given(map=maps(), fault=every_fault, rule=rules, share=shares)
def test_the_verdict_does_not_depend_on_how_the_function_is_written(
    mode: dict[str, Any], map: Map, fault: Fault, rule: Rule, share: float
) -> None:
    """Batched or not, by operations, a Function or NumPy, in fast mode or not: one function, one verdict."""
    planted = fault.planted(map, rule, share)
    outcomes = {
        (way, fast): checked(planted, way, rule, fast_mode=fast, **mode).outcome
        for way in WAYS
        for fast in (False, True)
    }
    expected = FAILED if share > 1 else PASSED
    assert {key: outcome for key, outcome in outcomes.items() if outcome != expected} == {}


@each_speed
@examples(2)
@given(
    way=batched_or_not,
    map=maps(),
    fault=every_fault,
    rule=rules,
    share=shares,
    seeds=st.sets(st.integers(0, 2**31), max_size=3),
)
def test_the_verdict_does_not_depend_on_the_seed(
    way: str, fast: bool, map: Map, fault: Fault, rule: Rule, share: float, seeds: set[int]
) -> None:
    """Random weights decide what is compared with what, never what comes out."""
    planted = fault.planted(map, rule, share)
    outcomes = {seed: checked(planted, way, rule, fast_mode=fast, seed=seed).outcome for seed in (0, *seeds)}
    assert set(outcomes.values()) == {FAILED if share > 1 else PASSED}


@each_speed
@each_mode
@examples(2)
@given(way=batched_or_not, map=maps(), fault=every_fault, rule=rules, share=shares)
def test_the_verdict_does_not_depend_on_whether_it_is_raised(
    way: str, mode: dict[str, Any], fast: bool, map: Map, fault: Fault, rule: Rule, share: float
) -> None:
    """`check`, `gradcheck` that raises and `gradcheck` that returns say the same."""
    planted = fault.planted(map, rule, share)
    function, keywords = planted.of_tensors(WAYS[way](planted)), {"fast_mode": fast, **mode}
    returned = covector.gradcheck(
        function, planted.primals(), raise_exception=False, **rule.keywords, **keywords
    )
    raised = verdict(function, planted.primals(), rule, **keywords)
    reported = checked(planted, way, rule, **keywords).outcome
    assert reported == raised
    assert returned is (raised == PASSED)
    assert returned is (share < 1)


@each_speed
@examples(2)
@given(way=batched_or_not, map=maps(), fault=every_fault, rule=rules, share=shares, cut=st.integers(0, 150))
def test_the_verdict_does_not_depend_on_an_input_that_is_split(
    way: str, fast: bool, map: Map, fault: Fault, rule: Rule, share: float, cut: int
) -> None:
    """Of f(x) and of f(cat(a, b)), where one half may be empty, the same is said, also about the entries."""
    columns = map.J.shape[1]
    cut = min(cut, columns)
    whole = replace(fault.planted(map, rule, share), inputs=(Part("a", (columns,)),))
    halves = replace(whole, inputs=(Part("a", (cut,)), Part("b", (columns - cut,))))
    one, two = (checked(planted, way, rule, fast_mode=fast) for planted in (whole, halves))
    assert one.outcome == two.outcome
    assert one.outcome == (FAILED if share > 1 else PASSED)
    if fault.kind in SINGLE:
        assert named(one) == named(two)


@examples(4)
@given(way=batched_or_not, map=maps(), fault=every_fault, rule=rules, share=shares)
def test_the_verdict_is_that_of_torch_where_entries_are_compared_one_by_one(
    way: str, map: Map, fault: Fault, rule: Rule, share: float
) -> None:
    """Exhaustive and for real numbers, torch's check applies the same rule to the same entries."""
    real = replace(
        fault.planted(map, rule, share),
        inputs=(Part("a", (map.J.shape[1],)),),
        outputs=(Part("output", (map.J.shape[0],)),),
    )
    function = real.of_tensors(WAYS[way](real))
    theirs = torch.autograd.gradcheck(function, real.primals(), raise_exception=False, **rule.keywords)
    assert bool(checked(real, way, rule)) is theirs


@each_speed
@each_mode
@examples(2)
@given(
    way=batched_or_not,
    map=maps(),
    fault=every_fault,
    rule=rules,
    share=st.sampled_from([0.02, 0.1, 0.5, 2.0, 5.0]),
    looser=st.lists(st.sampled_from([1.0, 3.0, 100.0]), min_size=4, max_size=4),
)
def test_a_looser_tolerance_never_turns_a_pass_into_a_failure(
    way: str,
    mode: dict[str, Any],
    fast: bool,
    map: Map,
    fault: Fault,
    rule: Rule,
    share: float,
    looser: list[float],
) -> None:
    """Along a chain of looser and looser rules, what passed once passes ever after."""
    planted = fault.planted(map, rule, share)
    chain = [rule]
    for factor, next_factor in zip(looser[::2], looser[1::2], strict=True):
        chain.append(Rule(chain[-1].atol * factor, chain[-1].rtol * next_factor))
    passes = [bool(checked(planted, way, step, fast_mode=fast, **mode)) for step in chain]
    assert passes == sorted(passes)


# The second order


def antiderivative(core: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A Function to the first derivative of which nobody looks: its backward is grad * core(x)."""

    class Antiderivative(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sum()

        @staticmethod
        def backward(ctx: Any, v: Tensor) -> Tensor:
            return v * core(ctx.saved_tensors[0])

    return Antiderivative.apply


@each_speed
@examples(2)
@given(way=batched_or_not, map=maps(), fault=faults(*SINGLE), rule=rules)
def test_the_second_order_has_the_same_rule(way: str, fast: bool, map: Map, fault: Fault, rule: Rule) -> None:
    """Of the derivative of a backward: twice what is allowed fails and is named, half of it passes."""
    size = min(map.J.shape)
    square = replace(map, J=map.J[:size, :size], x=map.x[:size])
    square = replace(square, believed=square.J, error=torch.zeros_like(square.J))
    inputs = square.x.clone().requires_grad_()
    one = torch.ones((), dtype=torch.float64, requires_grad=True)
    keywords = {"fast_mode": fast, **rule.keywords}

    half = fault.planted(square, rule, 0.5)
    assert covector.gradgradcheck(antiderivative(WAYS[way](half)), inputs, one, **keywords)
    wrong = fault.planted(square, rule, 2.0)
    with pytest.raises(covector.GradcheckError) as caught:
        covector.gradgradcheck(antiderivative(WAYS[way](wrong)), inputs, one, **keywords)
    assert caught.value.report.outcome == FAILED
    assert named(caught.value.report) == wrong_entries(wrong, rule)


# What is the caller's


# A step away and back again does not give these bits again.
ODD = torch.tensor([-0.0, 1e-310, 1 / 3, 1e17, -1e-9], dtype=torch.float64)


@each_speed
@each_mode
@examples(2)
@given(way=ways, map=maps(), fault=every_fault, share=shares, closes=st.booleans(), raises=st.booleans())
def test_inputs_are_bit_identical_afterwards(
    way: str,
    mode: dict[str, Any],
    fast: bool,
    map: Map,
    fault: Fault,
    share: float,
    closes: bool,
    raises: bool,
) -> None:
    """Values, grad and strides stay, also if the check fails, or the function closes over them or raises."""
    planted = fault.planted(map, Rule(), share)
    x = planted.x.clone()
    few = min(x.numel(), ODD.numel())
    x[:few] = ODD[:few]
    primals = replace(planted, x=x).primals()
    for primal in primals:
        primal.grad = torch.ones_like(primal)
    before = marks(primals)
    function, runs = planted.of_tensors(WAYS[way](planted)), []

    def called(*given: Tensor) -> Any:
        runs.append(given)
        if raises and len(runs) > 3:
            raise ArithmeticError
        return function(*(primals if closes else given))

    with suppress(covector.GradcheckError, ArithmeticError):
        covector.gradcheck(called, primals, fast_mode=fast, **mode)
    assert runs
    assert marks(primals) == before
