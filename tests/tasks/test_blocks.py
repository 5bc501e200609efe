"""Jacobians in blocks: by any executor the same as in this process."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from executor_functions import (
    POINT,
    Posting,
    kills_its_process,
    mixing,
    processes,
    refuses,
)

import covector
from covector._images import Gathered
from covector._tasks import sending
from covector.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    BatchingWarning,
    BudgetError,
    RandomnessError,
    SendError,
    StorageError,
    UnsupportedError,
    WorkerError,
)

zarr = pytest.importorskip("zarr", reason="out=...zarr needs zarr")


EXECUTORS = {"here": lambda: None, "threads": lambda: ThreadPoolExecutor(3), "posted": Posting}


@pytest.mark.parametrize("mode", ["reverse", "forward"])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_blocks_are_those_of_a_serial_run(executor, mode):
    """The same blocks give the same bits, whoever computes them."""
    serial = covector.jacobian(mixing, mode=mode, chunk_size=7)(POINT)
    out = np.zeros((40, 30)) if executor == "here" else None
    jacobian = covector.jacobian(mixing, mode=mode, chunk_size=7, executor=EXECUTORS[executor](), out=out)
    assert np.array_equal(np.asarray(jacobian(POINT)), serial.numpy())
    assert (jacobian.plan.mode, jacobian.plan.chunk) == (mode, 7)


# What jacobian takes beside a function of one tensor: trees, several arguments, samples, complex numbers.
QUESTIONS = {
    "trees": (lambda p: {"a": p["u"] * p["v"], "b": p["v"].sum()}, {}, ({"u": POINT, "v": POINT.cos()},)),
    "arguments": (lambda a, b, c=1.0: a * b**2 * c, {"argnums": (0, 1)}, (POINT, POINT.sin())),
    "samples": (lambda x: x.sin() * x.sum(1, keepdim=True), {"batch_dim": 0}, (POINT.reshape(10, 3),)),
    "complex": (lambda z: z**2 * z.sum(), {"complex": "wirtinger"}, (torch.complex(POINT[:5], POINT[5:10]),)),
    "auxiliary": (lambda x: (x.sin(), x.sum()), {"has_aux": True}, (POINT,)),
    "single precision": (lambda x: x.sin() * 2, {}, (POINT.float(),)),
    "bfloat16": (lambda x: x.sin() * 2, {}, (POINT.bfloat16(),)),
    "scalar": (lambda x: x.sum(), {}, (POINT,)),
    "empty output": (lambda x: x[:0], {}, (POINT,)),
    "empty input": (lambda x: x.sum() + POINT, {}, (POINT[:0],)),
    "requires grad": (lambda x: x.sin(), {}, (POINT.clone().requires_grad_(),)),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_has_its_answer(name):
    """The result is the tree that a serial call gives."""
    function, options, args = QUESTIONS[name]
    expected = covector.jacobian(function, **options)(*args)
    found = covector.jacobian(function, **options, chunk_size=2, executor=Posting())(*args)
    torch.testing.assert_close(
        found, torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, expected)
    )


HESSIANS = {
    "one number": (lambda x: x.sin().prod(), {}, (POINT,)),
    "several outputs": (lambda x: x.sin() * x.sum(), {}, (POINT[:7],)),
    "trees": (lambda p: (p["u"] ** 2 * p["v"]).sum(), {}, ({"u": POINT, "v": POINT.float()},)),
    "samples": (lambda x: (x**3).sum(1), {"batch_dim": 0}, (POINT.reshape(10, 3),)),
    "complex": (lambda z: (z**3).sum(), {"complex": "holomorphic"}, (torch.complex(POINT[:5], POINT[5:10]),)),
}


@pytest.mark.parametrize("name", HESSIANS)
def test_hessians_too(name):
    """The rows of a Hessian are those of a Jacobian."""
    function, options, args = HESSIANS[name]
    expected = covector.hessian(function, **options)(*args)
    found = covector.hessian(function, **options, chunk_size=2, executor=Posting())(*args)
    torch.testing.assert_close(found, expected)


def test_a_hessian_in_a_file(tmp_path):
    """With a row for each element of the gradient."""
    found = covector.hessian(lambda x: x.sin().prod(), out=tmp_path / "hessian.npy")(POINT)
    assert np.allclose(found, covector.hessian(lambda x: x.sin().prod())(POINT).numpy())


def test_the_value_comes_along():
    """From a run in this process."""
    value, jacobian = covector.value_and_jacobian(mixing, executor=Posting())(POINT)
    assert torch.equal(value, mixing(POINT))
    assert torch.equal(jacobian, covector.jacobian(mixing, chunk_size=16)(POINT))


class Unbatched(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.detach().numpy() * 2)

    @staticmethod
    def backward(ctx, grad):
        return torch.from_numpy(grad.detach().numpy() * 2)


def test_warnings_of_workers_are_heard():
    """A batch that failed there is said here, once for all blocks."""
    with pytest.warns(BatchingWarning, match="one by one") as heard:
        found = covector.jacobian(Unbatched.apply, chunk_size=3, executor=Posting())(POINT)
    assert len(heard) == 1
    assert torch.equal(found, 2 * torch.eye(30, dtype=torch.float64))


# Sending


lock = threading.Lock()


def named_part():
    held = {"a": [1, threading.Lock()]}

    def inner(x):
        with held["a"][1]:
            return x.sin()

    return lambda x: inner(x) * 2


class Guarded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.log = (line for line in ["a generator"])

    def forward(self, x):
        return x


UNSENDABLE = {
    "captured": (named_part(), (POINT,), "<lambda>: inner: held['a'][1] (_thread.lock): cannot pickle"),
    "attribute": (Guarded(), (POINT,), "Guarded.log (generator): cannot pickle"),
    "argument": (lambda x, way: x, (POINT, {"lock": lock}), "way['lock'] (_thread.lock): cannot pickle"),
}


@pytest.mark.parametrize("name", UNSENDABLE)
def test_what_cannot_be_sent_is_named(name):
    """By the path that leads to it."""
    function, args, text = UNSENDABLE[name]
    with pytest.raises(SendError) as raised:
        covector.jacobian(function, executor=Posting())(*args)
    assert text in str(raised.value)


def test_pickle_alone_sends_functions_by_name(monkeypatch):
    """Without cloudpickle a module's functions can be sent; of a lambda it is said what to do."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert sending._pickler() is sending.pickle.dumps
    found = covector.jacobian(mixing, chunk_size=7, executor=Posting())(POINT)
    assert torch.equal(found, covector.jacobian(mixing, chunk_size=7)(POINT))
    with pytest.raises(SendError, match="define it at the top level of a module, or install cloudpickle"):
        covector.jacobian(lambda x: x, executor=Posting())(POINT)


def test_a_module_that_a_worker_lacks_is_named():
    """The worker says which, instead of failing in the middle of unpickling."""
    with pytest.raises(SendError, match="a worker cannot load the function: No module named 'nowhere'"):
        sending.answer(sending.Packed(b"cnowhere\nfunction\n."), sending.Span(0, 1))


# Bad input


MISTAKES = {
    "no executor": (
        lambda: covector.jacobian(mixing, executor=4),
        ArgumentTypeError,
        "jacobian: executor must be a concurrent.futures.Executor",
    ),
    "a class": (
        lambda: covector.jacobian(mixing, executor=ThreadPoolExecutor),
        ArgumentTypeError,
        "Make one: ThreadPoolExecutor()",
    ),
    "suffix": (
        lambda: covector.jacobian(mixing, out="matrix.txt"),
        ArgumentValueError,
        "out='matrix.txt' must end in .npy",
    ),
    "no array": (
        lambda: covector.jacobian(mixing, out=4),
        ArgumentTypeError,
        "out must be a path or an array (numpy.memmap, zarr.Array), got int",
    ),
    "shape": (
        lambda: covector.jacobian(mixing, out=np.zeros((4, 4)))(POINT),
        ArgumentValueError,
        "out must be 40 x 30 (elements of the output, elements of the input) of float64, got shape (4, 4)",
    ),
    "dtype": (
        lambda: covector.jacobian(mixing, out=np.zeros((40, 30), dtype=np.float32))(POINT),
        ArgumentValueError,
        "of float64, got shape (40, 30) of float32",
    ),
    "read-only": (
        lambda: covector.jacobian(mixing, out=np.broadcast_to(0.0, (40, 30)))(POINT),
        ArgumentValueError,
        "jacobian(mixing): out is read-only. Open it for writing.",
    ),
    "no folder": (
        lambda: covector.jacobian(mixing, out=f"{os.devnull}/matrix.zarr")(POINT),
        StorageError,
        "matrix.zarr.json could not be written: Not a directory",
    ),
    "aux": (
        lambda: covector.jacobian(mixing, has_aux=True, out=np.zeros((40, 30))),
        ArgumentValueError,
        "does not go with has_aux, batch_dim or complex",
    ),
    "random": (
        lambda: covector.jacobian(lambda x: x * torch.rand(30), executor=Posting())(POINT),
        RandomnessError,
        "the function draws random numbers, and each block would see its own",
    ),
    "inside vmap": (
        lambda: torch.vmap(covector.jacobian(mixing, executor=Posting()))(POINT.expand(2, 30)),
        UnsupportedError,
        "their results carry no graph",
    ),
    "too large": (
        lambda: covector.jacobian(mixing, executor=Posting(), max_memory="5kB")(POINT),
        BudgetError,
        "with 9.6 kB, which is more than max_memory=5 kB. Allow more; write it to a file",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name):
    """Bad input gets an error of our own, that says what to do."""
    call, fault, text = MISTAKES[name]
    with pytest.raises(fault) as raised:
        call()
    assert text in str(raised.value)


def test_an_exception_that_cannot_be_sent_back_is_told():
    """Instead of one about pickle; with the traceback of the worker."""
    with pytest.raises(WorkerError, match="on a worker the function raised Refusal: no derivative") as raised:
        covector.jacobian(refuses, executor=Posting())(POINT)
    assert "in refuses" in raised.value.__notes__[0]


def test_an_executor_that_was_shut_down():
    """It takes no tasks, which is said."""
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(WorkerError, match="the executor takes no tasks"):
        covector.jacobian(mixing, executor=pool)(POINT)


# Processes


def test_pools_of_processes(tmp_path):
    """Lambdas travel, with what they capture; processes that are killed lose no finished block.

    A pool of Python's breaks when a worker is killed, so the call says so, and the next one goes on.
    """
    captured, expected = POINT.cos(), covector.jacobian(mixing, chunk_size=8)(POINT)
    with processes(2) as pool:
        found = covector.jacobian(lambda x: mixing(x * captured), chunk_size=7, executor=pool)(POINT)
    assert torch.equal(found, covector.jacobian(lambda x: mixing(x * captured), chunk_size=7)(POINT))
    # A worker is killed.
    out, args = tmp_path / "worker.npy", (POINT, str(tmp_path / "marker"), os.getpid())
    with processes() as pool, pytest.raises(WorkerError, match="the executor lost its workers"):
        covector.jacobian(kills_its_process, chunk_size=8, executor=pool, out=out)(*args)
    with processes() as pool:
        found = covector.jacobian(kills_its_process, chunk_size=8, executor=pool, out=out)(*args)
    assert np.array_equal(found, expected.numpy())


def test_blocks_stand_in_their_order_whichever_comes_first():
    """Also while another thread has a dual level open, which is one for the whole process."""
    rows = torch.arange(4.0)[:, None]
    with torch.autograd.forward_ad.dual_level():
        gathered = Gathered(4)
        gathered.add(2, [rows[2:]])
        gathered.add(0, [rows[:2]])
    assert torch.equal(gathered.whole()[0], rows)
