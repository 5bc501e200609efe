"""The verdicts of torch's checker: the same on a table of calls, and a table of where and why not."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import covector

DOUBLE, COMPLEX = torch.float64, torch.complex128


def random(*shape, dtype=DOUBLE):
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def leaf(*values):
    return torch.tensor(values, dtype=DOUBLE, requires_grad=True)


class Square(torch.autograd.Function):
    """x * x, with every rule that torch can ask for."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return None if g is None else 2 * ctx.saved_tensors[0] * g

    @staticmethod
    def jvp(ctx, t):
        return 2 * ctx.saved_tensors[0] * t


class WrongForward(Square):
    """Reverse mode right, forward mode wrong."""

    @staticmethod
    def jvp(ctx, t):
        return 3 * ctx.saved_tensors[0] * t


class WrongSecond(Square):
    """The first derivative right, the second lost."""

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0].detach() * g


class WrongByTen(Square):
    """Every entry ten percent off."""

    @staticmethod
    def backward(ctx, g):
        return 2.2 * ctx.saved_tensors[0] * g


class IgnoresCotangent(Square):
    """The gradient of the sum, whatever is asked for."""

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0]


class Noisy(torch.autograd.Function):
    """A backward that differs a little each time."""

    runs = 0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.set_materialize_grads(False)
        return x * x

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return None
        Noisy.runs += 1
        return 2 * ctx.saved_tensors[0] * g * (1 + 1e-8 * (Noisy.runs % 7))


class Undefined(torch.autograd.Function):
    """Two outputs; crashes when both cotangents are undefined."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, g, h):
        if g is None and h is None:
            raise RuntimeError("no cotangent")
        return (0 if g is None else g * 2) + (0 if h is None else h * 3)


class NoVmap(torch.autograd.Function):
    """Right, but its backward cannot be batched."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2 if g.sum().item() < torch.inf else g


class Legacy(torch.autograd.Function):
    """Without `setup_context`, so that no transform takes it; its backward is another such Function."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return LegacyBackward.apply(g, *ctx.saved_tensors)

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * ctx.saved_tensors[0].cos()


class LegacyBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, g, x):
        ctx.save_for_backward(g, x)
        return g * x.cos()

    @staticmethod
    def backward(ctx, h):
        g, x = ctx.saved_tensors
        return h * x.cos(), -h * g * x.sin()


class LegacyWrong(Legacy):
    """A tangent that is off."""

    @staticmethod
    def jvp(ctx, tangent):
        return 1.01 * tangent * ctx.saved_tensors[0].cos()


class LegacyLooks(Legacy):
    """A tangent that is read as a number cannot be batched."""

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * ctx.saved_tensors[0].cos() if tangent.sum().item() < torch.inf else tangent


wide = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
matrices = (random(2, 3), random(3, 2))
parameter = random(3)

# name: verb, function, inputs, keywords, torch's verdict.
AGREED = {
    "sin": ("gradcheck", torch.sin, random(3), {}, True),
    "sin, all checks": ("gradcheck", torch.sin, (random(3),), wide, True),
    "legacy, all checks": ("gradcheck", Legacy.apply, random(3), wide, True),
    "legacy, all checks, fast": ("gradcheck", Legacy.apply, random(3), {**wide, "fast_mode": True}, True),
    "legacy, second order, batched": (
        "gradgradcheck",
        Legacy.apply,
        random(3),
        {"check_batched_grad": True},
        True,
    ),
    "legacy, wrong": ("gradcheck", LegacyWrong.apply, random(3), wide, False),
    "legacy, not batched": ("gradcheck", LegacyLooks.apply, random(3), wide, False),
    "batch norm in training": (
        "gradcheck",
        torch.nn.BatchNorm2d(2).double(),
        random(2, 2, 2, 2),
        {"check_forward_ad": True},
        True,
    ),
    "batch norm in training, all checks": (
        "gradcheck",
        torch.nn.BatchNorm1d(3).double(),
        random(4, 3),
        wide,
        True,
    ),
    "a network with batch norm in training": (
        "gradcheck",
        torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Tanh()).double(),
        random(4, 3),
        wide,
        True,
    ),
    "instance norm that tracks": (
        "gradcheck",
        torch.nn.InstanceNorm1d(2, track_running_stats=True).double(),
        random(2, 2, 3),
        wide,
        True,
    ),
    "sin, all checks, fast": ("gradcheck", torch.sin, (random(3),), {**wide, "fast_mode": True}, True),
    "mm": ("gradcheck", torch.mm, matrices, {}, True),
    "mm, all checks": ("gradcheck", torch.mm, matrices, wide, True),
    "mm, forward only": (
        "gradcheck",
        torch.mm,
        matrices,
        {"check_forward_ad": True, "check_backward_ad": False},
        True,
    ),
    "mm, no undefined": ("gradcheck", torch.mm, matrices, {"check_undefined_grad": False}, True),
    "mm, dtypes": ("gradcheck", torch.mm, matrices, {"check_grad_dtypes": True}, True),
    "list of inputs": ("gradcheck", torch.mm, list(matrices), {}, True),
    "several outputs": ("gradcheck", lambda x: (x.sin(), x.cumsum(0)), (random(3),), wide, True),
    "topk with indices": ("gradcheck", lambda x: x.topk(2), (leaf(1.0, 3.0, 2.0),), {}, True),
    "broadcast": ("gradcheck", torch.add, (random(3, 1), random(1, 2)), wide, True),
    "complex": (
        "gradcheck",
        lambda z: z * z.conj(),
        (random(3, dtype=COMPLEX),),
        {"check_forward_ad": True, "check_batched_grad": True},
        True,
    ),
    "captured, forward": (
        "gradcheck",
        lambda _: parameter.sin(),
        (parameter,),
        {"check_forward_ad": True},
        None,
    ),
    "captured beside given, second order": (
        "gradgradcheck",
        lambda x, _: x * parameter**2,
        (random(3), parameter),
        {},
        True,
    ),
    "complex to real": (
        "gradcheck",
        torch.abs,
        (random(3, dtype=COMPLEX),),
        {"check_forward_ad": True},
        True,
    ),
    "real to complex": ("gradcheck", torch.fft.rfft, (random(4),), {"fast_mode": True}, True),
    "captured": ("gradcheck", lambda _: parameter.sin(), (parameter,), {}, True),
    "captured, fast": ("gradcheck", lambda _: parameter.sin(), (parameter,), {"fast_mode": True}, True),
    "softmax": ("gradcheck", lambda x: F.softmax(x, -1), (random(2, 3),), {"atol": 1e-6}, True),
    "not used": ("gradcheck", lambda x, y: x.sin(), (random(2), random(2)), {}, True),
    "constant": ("gradcheck", lambda x: torch.ones(2, dtype=DOUBLE), (random(2),), {}, True),
    "integers": ("gradcheck", lambda x: x.argmax(), (leaf(1.0, 2.0),), {}, True),
    "empty": ("gradcheck", torch.sin, (random(0),), {}, True),
    "scalar": ("gradcheck", torch.sin, (torch.tensor(0.5, dtype=DOUBLE, requires_grad=True),), wide, True),
    "eps": ("gradcheck", torch.exp, (random(3),), {"eps": 1e-4}, True),
    "custom, all checks": ("gradcheck", Square.apply, (random(3),), wide, True),
    "abs at 0": ("gradcheck", torch.abs, (leaf(0.0, 1.0),), {}, True),
    "undefined not asked for": (
        "gradcheck",
        Undefined.apply,
        (random(3),),
        {"check_undefined_grad": False},
        True,
    ),
    "noise allowed": ("gradcheck", Noisy.apply, (random(3),), {"nondet_tol": 1e-5}, True),
    "no vmap, not asked for": ("gradcheck", NoVmap.apply, (random(3),), {}, True),
    "second order": ("gradgradcheck", torch.mm, matrices, {}, True),
    "second order, forward": ("gradgradcheck", torch.mm, matrices, {"check_fwd_over_rev": True}, True),
    "second order, batched": ("gradgradcheck", torch.mm, matrices, {"check_batched_grad": True}, True),
    "second order, fast": ("gradgradcheck", lambda x: x.sin() * x, (random(3),), {"fast_mode": True}, True),
    "second order, not contiguous": (
        "gradgradcheck",
        lambda x: x.sin() * x,
        (random(3, 2),),
        {"gen_non_contig_grad_outputs": True},
        True,
    ),
    "second order, cotangents given": (
        "gradgradcheck",
        lambda x: x**3,
        (random(3),),
        {"grad_outputs": random(3)},
        True,
    ),
    "second order, cotangents that need no grad": (
        "gradgradcheck",
        lambda x: x**3,
        (random(3),),
        {"grad_outputs": torch.ones(3, dtype=DOUBLE)},
        True,
    ),
    "second order, several outputs": ("gradgradcheck", lambda x: (x**2, x.sin()), (random(3),), {}, True),
    "second order, not used": ("gradgradcheck", lambda x, y: x.sin(), (random(2), random(2)), {}, True),
    "second order, captured": ("gradgradcheck", lambda _: parameter**3, (parameter,), {}, True),
    "second order, complex": ("gradgradcheck", lambda z: z**3, (random(2, dtype=COMPLEX),), {}, True),
    "second order, linear": ("gradgradcheck", lambda x: 3 * x, (random(3),), {}, True),
    "second order, forward only": (
        "gradgradcheck",
        torch.sin,
        (random(3),),
        {"check_fwd_over_rev": True, "check_rev_over_rev": False, "check_undefined_grad": False},
        True,
    ),
    "first order of a lost second": ("gradcheck", WrongSecond.apply, (random(3),), {}, True),
    "reverse of a wrong forward": ("gradcheck", WrongForward.apply, (random(3),), {}, True),
    # Wrong ones.
    "ten percent": ("gradcheck", WrongByTen.apply, (random(3),), {}, False),
    "ten percent, fast": ("gradcheck", WrongByTen.apply, (random(3),), {"fast_mode": True}, False),
    "ten percent, allowed": ("gradcheck", WrongByTen.apply, (random(3),), {"rtol": 0.2}, True),
    "ten percent, forward only": (
        "gradcheck",
        WrongByTen.apply,
        (random(3),),
        {"check_forward_ad": True, "check_backward_ad": False},
        True,
    ),
    "wrong forward": ("gradcheck", WrongForward.apply, (random(3),), {"check_forward_ad": True}, False),
    "ignores the cotangent": ("gradcheck", IgnoresCotangent.apply, (random(3),), {}, False),
    "detached": ("gradcheck", lambda x: x.detach() * 2, (random(3),), {}, False),
    "half detached": ("gradcheck", lambda x: x * x.detach(), (random(3),), {}, False),
    "relu at 0": ("gradcheck", torch.relu, (leaf(0.0, 1.0),), {}, False),
    "noise": ("gradcheck", Noisy.apply, (random(3),), {}, False),
    "undefined": ("gradcheck", Undefined.apply, (random(3),), {}, False),
    "no vmap": ("gradcheck", NoVmap.apply, (random(3),), {"check_batched_grad": True}, False),
    "outside the domain": ("gradcheck", torch.log, (leaf(-1.0, 1.0),), {}, None),
    "lost second": ("gradgradcheck", WrongSecond.apply, (random(3),), {}, False),
    "lost second, fast": ("gradgradcheck", WrongSecond.apply, (random(3),), {"fast_mode": True}, False),
    "lost second, forward": (
        "gradgradcheck",
        WrongSecond.apply,
        (random(3),),
        {"check_fwd_over_rev": True, "check_rev_over_rev": False, "check_undefined_grad": False},
        False,
    ),
    "captured, wrong": ("gradcheck", lambda _: WrongByTen.apply(parameter), (parameter,), {}, False),
    "captured, lost second": (
        "gradgradcheck",
        lambda _: WrongSecond.apply(parameter),
        (parameter,),
        {},
        False,
    ),
}


def verdict(library, verb, function, inputs, keywords):
    """True or False, as the library says."""
    Noisy.runs = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(library, verb)(function, inputs, raise_exception=False, **keywords)


@pytest.mark.parametrize(
    ("verb", "function", "inputs", "keywords", "expected"), AGREED.values(), ids=AGREED.keys()
)
def test_agrees(verb, function, inputs, keywords, expected):
    """The same verdict, and the one that is written down."""
    theirs = verdict(torch.autograd, verb, function, inputs, keywords)
    assert expected is None or theirs is expected
    assert verdict(covector, verb, function, inputs, keywords) is theirs


def flipped(n):
    """The square, with the sign of one backward entry flipped."""

    class Flipped(Square):
        @staticmethod
        def backward(ctx, g):
            sign = torch.ones(n, dtype=DOUBLE)
            sign[n // 2] = -1
            return 2 * ctx.saved_tensors[0] * g * sign

    return Flipped.apply


class Absolute(Square):
    """|g| in place of g."""

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g.abs()


single = torch.linspace(0.5, 1.5, 4).requires_grad_()
forward_only = {"check_forward_ad": True, "check_backward_ad": False}

# name: verb, function, inputs, keywords, torch's answer, ours, who is right and why.
DISAGREED = {
    "detached beside another, forward": (
        "gradcheck",
        lambda x: (x.detach() * 3, x * 2),
        (random(3),),
        {"check_forward_ad": True},
        False,
        True,
        "covector: the derivative of a detached output is not claimed, the other is right",
    ),
    "integer beside another, forward": (
        "gradcheck",
        lambda x: (x.detach().floor(), x * 2),
        (leaf(0.3, 0.6),),
        forward_only,
        False,
        True,
        "covector: as above; floor is a constant on both sides of these points",
    ),
    "batched forward of a conjugate": (
        "gradcheck",
        lambda z: z * z.conj(),
        (random(3, dtype=COMPLEX),),
        {"check_forward_ad": True, "check_batched_forward_grad": True},
        False,
        True,
        "covector: torch's batching runs into an assertion of its own about the layout of a tangent",
    ),
    "near 1e10": (
        "gradcheck",
        torch.log,
        (leaf(1e10, 2e10),),
        {"atol": 1e-13},
        False,
        True,
        "covector: the step has to grow with the input",
    ),
    "near 1e-7": (
        "gradcheck",
        torch.log,
        (leaf(2e-7, 3e-7),),
        {},
        False,
        True,
        "covector: the step has to be smaller than the input",
    ),
    "float32": ("gradcheck", torch.sin, (single,), {}, False, True, "covector: the gradient is right"),
    "one sign of 2000, fast": (
        "gradcheck",
        flipped(2000),
        (torch.linspace(-1, 1, 2000, dtype=DOUBLE).requires_grad_(),),
        {"fast_mode": True},
        True,
        False,
        "covector: an entry is wrong; torch's probes are all positive and its threshold grows with n",
    ),
    "|g|": ("gradcheck", Absolute.apply, (random(3),), {}, True, False, "covector: a backward is linear"),
    "large constant": (
        "gradcheck",
        lambda x: 1e8 + x.sin(),
        (leaf(0.3, 0.6),),
        {},
        False,
        True,
        "covector: a larger step shows that the gradient is right",
    ),
    "steep": (
        "gradcheck",
        lambda x: (1e5 * x).sin(),
        (leaf(0.3, 0.6),),
        {},
        False,
        True,
        "covector: a smaller step shows that the gradient is right",
    ),
}


class Overwrites(Square):
    """The cotangent is used as scratch space."""

    @staticmethod
    def backward(ctx, g):
        return g.mul_(2 * ctx.saved_tensors[0])


class Raises(Square):
    """Neither derivative can be computed."""

    @staticmethod
    def backward(ctx, g):
        raise KeyError("lost")

    @staticmethod
    def jvp(ctx, t):
        raise KeyError("lost")


class OneOfTwo(torch.autograd.Function):
    """Two outputs; wrong when the second cotangent is undefined."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, g, h):
        if h is None:
            return None if g is None else 5 * g
        return 3 * h if g is None else 2 * g + 3 * h


DISAGREED |= {
    "writes into its cotangent": (
        "gradcheck",
        Overwrites.apply,
        (random(3),),
        {},
        True,
        False,
        "covector: others may need the cotangent; torch's fast mode fails too",
    ),
    "one undefined of two, not asked for": (
        "gradcheck",
        OneOfTwo.apply,
        (random(3),),
        {"check_undefined_grad": False},
        False,
        True,
        "both: torch pulls one output back at a time, so that the other cotangent is undefined all the same",
    ),
}

# name: function, inputs, keywords, the exception that torch raises where covector answers True or False.
ANSWERED = {
    "the shape of the output changes": (
        "gradcheck",
        lambda x: x.sum().expand(2 if x[0] > 1.0 else 3),
        (leaf(1.0, 2.0),),
        {},
        AssertionError,
        False,
        "covector: raise_exception=False asks for an answer",
    ),
    "dict output": (
        "gradcheck",
        lambda x: {"a": x.sin()},
        (random(3),),
        {},
        AttributeError,
        True,
        "covector: trees are welcome",
    ),
    "dict input": (
        "gradcheck",
        lambda p: p["a"].sin(),
        ({"a": random(3)},),
        {},
        ValueError,
        True,
        "covector: trees are welcome",
    ),
    "None beside an output": (
        "gradcheck",
        lambda x: (x.sin(), None),
        (random(3),),
        {},
        AttributeError,
        True,
        "covector: trees are welcome",
    ),
    "no jvp": (
        "gradcheck",
        Noisy.apply,
        (random(3),),
        {"check_forward_ad": True, "nondet_tol": 1e-4},
        NotImplementedError,
        False,
        "covector: what cannot be checked is not proved right, and the other checks are reported beside it",
    ),
    "a backward that raises": (
        "gradcheck",
        Raises.apply,
        (random(3),),
        {},
        KeyError,
        False,
        "covector: a derivative that cannot be computed is not right, and the error is the cause of ours",
    ),
    "a jvp that raises": (
        "gradcheck",
        Raises.apply,
        (random(3),),
        forward_only,
        KeyError,
        False,
        "covector: as above",
    ),
    "booleans beside an output": (
        "gradcheck",
        lambda x: (x > 0, x * 2),
        (leaf(0.3, -0.6),),
        {},
        RuntimeError,
        True,
        "covector: they have no derivative, and torch cannot subtract them",
    ),
    "a constant beside an output, fast": (
        "gradcheck",
        lambda x: (torch.ones(2, dtype=DOUBLE), x * 2),
        (random(3),),
        {"fast_mode": True},
        RuntimeError,
        True,
        "covector: torch compares the constant with the derivative of the other",
    ),
    "the dtype of the output changes": (
        "gradcheck",
        lambda x: x * 2 if x[0] <= 1.0 else (x * 2).float(),
        (leaf(1.0, 2.0),),
        {},
        AssertionError,
        False,
        "covector: raise_exception=False asks for an answer",
    ),
    "forward over reverse only, undefined by default": (
        "gradgradcheck",
        torch.sin,
        (random(3),),
        {"check_fwd_over_rev": True, "check_rev_over_rev": False},
        AssertionError,
        True,
        "covector: a keyword that was not given cannot exclude another",
    ),
}


@pytest.mark.parametrize(
    ("verb", "function", "inputs", "keywords", "theirs", "ours", "why"),
    DISAGREED.values(),
    ids=DISAGREED.keys(),
)
def test_disagrees(verb, function, inputs, keywords, theirs, ours, why):
    """Each answer is the one that is written down, so that a change on either side is noticed."""
    assert verdict(torch.autograd, verb, function, inputs, keywords) is theirs
    assert verdict(covector, verb, function, inputs, keywords) is ours
    assert why.startswith(("covector", "torch", "both"))


@pytest.mark.parametrize(
    ("verb", "function", "inputs", "keywords", "theirs", "ours", "why"),
    ANSWERED.values(),
    ids=ANSWERED.keys(),
)
def test_answers_where_torch_raises(verb, function, inputs, keywords, theirs, ours, why):
    """There torch raises, whatever raise_exception says, or in some releases agrees; covector answers."""
    try:
        answer = verdict(torch.autograd, verb, function, inputs, keywords)
    except theirs:
        answer = ours
    assert answer is ours
    assert verdict(covector, verb, function, inputs, keywords) is ours
    assert why.startswith("covector")


@pytest.mark.parametrize("start", range(7))
def test_noise_that_is_allowed_is_allowed_by_every_check(start, monkeypatch):
    """Wherever the noise begins: nondet_tol holds for linearity and undefined cotangents as well."""
    for library in (torch.autograd, covector):
        monkeypatch.setattr(Noisy, "runs", start)
        assert library.gradcheck(Noisy.apply, (leaf(0.5, -1.5, 1.0),), nondet_tol=1e-5, raise_exception=False)


WRONG_COTANGENTS = {
    "too many": ((random(3), random(3)), ValueError, "for each output that requires grad, 1 in all, got 2."),
    "none": ((None,), TypeError, "grad_outputs[0] must be a tensor, got None (NoneType)."),
    "another shape": (
        random(2),
        RuntimeError,
        "grad_outputs[0] has shape (2,), expected (3,), that of output.",
    ),
}


@pytest.mark.parametrize(
    ("cotangents", "kind", "text"), WRONG_COTANGENTS.values(), ids=WRONG_COTANGENTS.keys()
)
def test_cotangents_that_do_not_fit(cotangents, kind, text):
    """Refused by name; torch ignores what is too much, and stumbles over the others."""
    with pytest.raises(kind) as caught:
        covector.gradgradcheck(lambda x: x**3, (random(3),), cotangents)
    assert str(caught.value).startswith("gradgradcheck(<lambda>): grad_outputs")
    assert text in str(caught.value)


class Wrapped:
    """Like a tensor to torch's functions, and none."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __getattr__(self, name):
        return getattr(self.tensor, name)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return function(*unwrapped(args), **{name: unwrapped(arg) for name, arg in (kwargs or {}).items()})


def unwrapped(value):
    if isinstance(value, tuple | list):
        return type(value)(map(unwrapped, value))
    return value.tensor if isinstance(value, Wrapped) else value


def times(x, y):
    return torch.mul(torch.sin(x), y)


# name: verb, function, inputs, keywords, the verdict of both.
LIKE_TENSORS = {
    "input": ("gradcheck", torch.sin, lambda: (Wrapped(random(3)),), {}, True),
    "input, fast": ("gradcheck", torch.sin, lambda: (Wrapped(random(3)),), {"fast_mode": True}, True),
    "one of two inputs": ("gradcheck", times, lambda: (random(3), Wrapped(random(3))), {}, True),
    "constant": ("gradcheck", times, lambda: (random(3), Wrapped(torch.ones(3, dtype=DOUBLE))), {}, True),
    "wrong by it": (
        "gradcheck",
        lambda x: WrongByTen.apply(torch.sin(x)),
        lambda: (Wrapped(random(3)),),
        {},
        False,
    ),
    "output": ("gradcheck", lambda x: Wrapped(torch.sin(x)), lambda: (random(3),), {}, True),
    "one of two outputs": ("gradcheck", lambda x: (x * 2, Wrapped(x.sin())), lambda: (random(3),), {}, True),
    "wrong output": (
        "gradcheck",
        lambda x: (x * 2, Wrapped(WrongByTen.apply(x))),
        lambda: (random(3),),
        {},
        False,
    ),
    "second order": ("gradgradcheck", torch.sin, lambda: (Wrapped(random(3)),), {}, True),
    "batched": ("gradcheck", torch.sin, lambda: (Wrapped(random(3)),), {"check_batched_grad": True}, True),
}


@pytest.mark.parametrize(
    ("verb", "function", "inputs", "keywords", "expected"), LIKE_TENSORS.values(), ids=LIKE_TENSORS.keys()
)
def test_objects_like_tensors(verb, function, inputs, keywords, expected):
    """They are checked by the tensor in them, which is as before afterwards."""
    for library in (torch.autograd, covector):
        given = inputs()
        before = [x.data.clone() for x in given]
        assert verdict(library, verb, function, given, keywords) is expected
        assert all(map(torch.equal, before, [x.data for x in given]))


class Opaque(Wrapped):
    """One that never gives its tensor away."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return cls(super().__torch_function__(function, types, args, kwargs))


def test_objects_like_tensors_that_cannot_be_checked():
    """Refused, and not left out without a word."""
    no_leaf, no_tensor = Wrapped(random(3) * 1 + random(3)), Opaque(random(3))
    with pytest.raises(TypeError, match=r"an input is a Wrapped, .* no leaf in it"):
        covector.gradcheck(torch.sin, no_leaf)
    with pytest.raises(TypeError, match=r"an output is a Opaque, .* gives no tensor for it"):
        covector.gradcheck(lambda x: (x * 2, no_tensor), random(3))
