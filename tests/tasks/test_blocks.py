"""Jacobians in blocks: by any executor the same as in this process, written to files, and continued."""

import io
import json
import os
import re
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from executor_functions import (
    POINT,
    Posting,
    kills_its_process,
    leaves_a_file,
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
    ResumeError,
    SendError,
    StorageError,
    UnsupportedError,
    WorkerError,
)
from forked import printed

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
        "matrix.zarr could not be written: Not a directory",
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


# Files


SUFFIXES = [".npy", ".zarr"]


@pytest.mark.parametrize("mode", ["reverse", "forward"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_matrix_in_a_file(suffix, mode, tmp_path):
    """It is the matrix, can be opened by others, and is not computed again."""
    out = tmp_path / f"matrix{suffix}"
    executor = Posting()
    written = covector.jacobian(mixing, mode=mode, chunk_size=7, executor=executor, out=out)
    found = written(POINT)
    expected = covector.jacobian(mixing, mode=mode, chunk_size=7)(POINT).numpy()
    opened = np.load(out, mmap_mode="r") if suffix == ".npy" else zarr.open_array(str(out), mode="r")
    assert np.array_equal(found[:], expected)
    assert np.array_equal(opened[:], expected)
    count = len(executor.tasks)
    assert count == -(-(40 if mode == "reverse" else 30) // 7)
    assert np.array_equal(written(POINT)[:], expected)
    assert len(executor.tasks) == count + 1  # one block is computed again, and compared
    assert not list(tmp_path.glob("*.partial"))


class Terminal(io.StringIO):
    """What a terminal would show."""

    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_a_bar_shows_how_far_it_is(terminal, tmp_path, monkeypatch):
    """On a terminal alone; what is continued begins with what is finished."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    out = tmp_path / "matrix.npy"
    covector.jacobian(mixing, mode="reverse", chunk_size=8, out=out)(POINT)
    path = tmp_path / "matrix.npy.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "finished": [[0, 24]]}))
    first = terminal.getvalue()
    covector.jacobian(mixing, mode="reverse", chunk_size=8, out=out)(POINT)
    again = terminal.getvalue().removeprefix(first)
    if terminal.isatty():
        assert re.search("blocks .*5/5", first)
        assert re.findall(r"(\d)/5", again)[0] == "3"
        assert re.search("blocks .*5/5", again)
    else:
        assert (first, again) == ("", "")


def test_a_tree_in_a_file(tmp_path):
    """Rows and columns in the order of the leaves."""
    point = {"u": POINT[:3], "v": POINT[3:7].float()}
    found = covector.jacobian(lambda p: (p["u"].sum() * p["v"], p["u"] ** 2), out=tmp_path / "m.npy")(point)
    parts = covector.jacobian(lambda p: (p["u"].sum() * p["v"], p["u"] ** 2))(point)
    rows = [torch.cat([row["u"].double(), row["v"].double()], dim=1) for row in parts]
    assert found.dtype == np.float64
    assert np.allclose(found, torch.cat(rows).numpy(), rtol=1e-7)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_was_interrupted_is_continued(suffix, tmp_path):
    """What was finished is kept; one block of it is computed again, the others are not."""
    out, runs = tmp_path / f"matrix{suffix}", tmp_path / "runs"
    runs.mkdir()

    def interrupted_once(x, folder):
        if leaves_a_file(folder) == 4:
            raise KeyboardInterrupt
        return mixing(x)

    with pytest.raises(KeyboardInterrupt):
        covector.jacobian(interrupted_once, chunk_size=8, out=out)(POINT, str(runs))
    manifest = json.loads((tmp_path / f"matrix{suffix}.json").read_text())
    assert manifest["finished"] == [[0, 24]]  # the first run learns the sizes, and the fifth block was lost
    found = covector.jacobian(interrupted_once, chunk_size=8, out=out)(POINT, str(runs))
    assert np.array_equal(found[:], covector.jacobian(mixing, chunk_size=8)(POINT).numpy())
    assert len(list(runs.iterdir())) == 5 + 1 + 1 + 2


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_was_killed_before_its_first_block_is_made_again(suffix, tmp_path):
    """The file may be there or not, whole or in part; the manifest says that nothing of it counts."""
    out = tmp_path / f"matrix{suffix}"
    expected = covector.jacobian(mixing, chunk_size=8, out=out)(POINT)[:]
    path = tmp_path / f"matrix{suffix}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "finished": []}))
    damaged = out if suffix == ".npy" else out / "zarr.json"
    for damage in (lambda: damaged.write_bytes(b"half"), damaged.unlink, lambda: None):
        damage()
        assert np.array_equal(covector.jacobian(mixing, chunk_size=8, out=out)(POINT)[:], expected)
        path.write_text(json.dumps({**json.loads(path.read_text()), "finished": []}))


def test_a_zarr_array_is_of_one_format(tmp_path):
    """Whatever the caller's default is; arrays of the older one, which can name pickle, are not read."""
    out, jacobian = tmp_path / "matrix.zarr", covector.jacobian(mixing, mode="reverse", chunk_size=8)
    written = covector.jacobian(mixing, mode="reverse", chunk_size=8, out=out)
    with zarr.config.set({"default_zarr_format": 2}):
        assert np.array_equal(written(POINT)[:], jacobian(POINT).numpy())
        assert np.array_equal(written(POINT)[:], jacobian(POINT).numpy())
    older = zarr.create_array(str(out), data=jacobian(POINT).numpy(), zarr_format=2, overwrite=True)
    assert older.metadata.zarr_format == 2
    with pytest.raises(ResumeError, match=r"matrix\.zarr cannot be read, though"):
        written(POINT)


# Of a Zarr array: a file of it, and what is put there.
DAMAGED = {
    "facts that are no table": ("zarr.json", lambda text: b"[1]"),
    "facts of another kind": (
        "zarr.json",
        lambda text: text.replace(b'"codecs": [', b'"codecs": 3, "others": ['),
    ),
    "half of a block": ("c/2/0", lambda text: text[:50]),
    "a block of something else": ("c/2/0", lambda text: 100 * b"hello"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_not_continued(name, tmp_path):
    """Whatever its reader raises, it is an error of ours."""
    out = tmp_path / "matrix.zarr"
    covector.jacobian(mixing, mode="reverse", chunk_size=8, out=out)(POINT)
    path = tmp_path / "matrix.zarr.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "finished": [[0, 24]]}))
    file, damage = DAMAGED[name]
    before = (out / file).read_bytes()
    (out / file).write_bytes(damage(before))
    assert (out / file).read_bytes() != before
    with pytest.raises(ResumeError, match=r"matrix\.zarr cannot be read, though"):
        covector.jacobian(mixing, mode="reverse", chunk_size=8, out=out)(POINT)


def doubled(x):
    return 2 * mixing(x)


OTHERS = {
    "another function": lambda out: covector.jacobian(doubled, out=out)(POINT),
    "other arguments": lambda out: covector.jacobian(mixing, out=out)(POINT + 1),
    "another mode": lambda out: covector.jacobian(mixing, mode="forward", out=out)(POINT),
    "another block": lambda out: covector.jacobian(mixing, chunk_size=3, out=out)(POINT),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_of_another_call_is_left_alone(name, tmp_path):
    """It is not continued, and not overwritten."""
    out = tmp_path / "matrix.npy"
    covector.jacobian(mixing, out=out)(POINT)
    before = out.read_bytes()
    with pytest.raises(ResumeError, match=f"was begun with {name}"):
        OTHERS[name](out)
    assert out.read_bytes() == before


def test_a_finished_block_that_differs_is_noticed(tmp_path):
    """What a fingerprint cannot see, the block that is computed again shows."""
    out = tmp_path / "matrix.npy"
    array = covector.jacobian(mixing, chunk_size=8, out=out)(POINT)
    array[39, 3] += 1e-3
    array.flush()
    with pytest.raises(ResumeError, match="the rows 32 to 39 that are finished in out differ"):
        covector.jacobian(mixing, chunk_size=8, out=out)(POINT)


def test_a_file_of_a_stranger_is_left_alone(tmp_path):
    """Without a manifest nobody knows what it is."""
    out = tmp_path / "matrix.npy"
    np.save(out, np.zeros(3))
    with pytest.raises(ResumeError, match=r"there is no matrix\.npy\.json beside it"):
        covector.jacobian(mixing, out=out)(POINT)


def test_memory_is_kept_to_in_every_block(tmp_path):
    """Larger than the limit is the matrix, not the work for a block."""

    def wide(x):
        return torch.outer(x, x).flatten().sin()

    x = torch.linspace(0, 1, 30, dtype=torch.float64)
    jacobian = covector.jacobian(wide, mode="reverse", max_memory="200kB", out=tmp_path / "matrix.npy")
    found = jacobian(x)
    assert found.nbytes > 200_000
    assert jacobian.plan.chunk * 30 * 8 <= 200_000
    assert np.allclose(found, covector.jacobian(wide)(x).numpy())


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


# Children of one process write a matrix each: the k-th is killed when it is about to do the k-th thing to a
# file. What they would load, the process has loaded.
KILLED = """
import json, os, signal, sys
sys.path.insert(0, MODULES)
import torch, zarr, covector
from executor_functions import POINT, mixing

class Kill:
    def __init__(self, folder, k):
        self.folder, self.left = folder, k
        sys.addaudithook(self.called)
        sys.setprofile(self.entered)

    def called(self, event, args):
        if event in ("open", "os.mkdir", "os.rename", "os.remove") and str(args[0]).startswith(self.folder):
            self.at()

    def entered(self, frame, event, function):
        if event == "c_call" and function.__name__ == "write":
            self.at()

    def at(self):
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

torch.set_num_threads(1)
covector.jacobian(mixing, mode="reverse", chunk_size=20)(POINT)
for name in NAMES:
    codes = []
    while 0 not in codes:
        folder = os.path.join(ROOT, name, str(len(codes)))
        os.makedirs(folder)
        child = os.fork()
        if child == 0:
            Kill(folder, len(codes))
            covector.jacobian(mixing, mode="reverse", chunk_size=20, out=os.path.join(folder, name))(POINT)
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(codes))
"""


def test_a_client_that_is_killed_at_any_moment(tmp_path):
    """The next call goes on: what counts as finished is not computed again, but for one block."""
    names = [f"matrix{suffix}" for suffix in SUFFIXES]
    values = {"MODULES": str(Path(__file__).parent), "ROOT": str(tmp_path), "NAMES": names}
    said = printed("".join(f"{key} = {value!r}\n" for key, value in values.items()) + KILLED)
    expected = covector.jacobian(mixing, mode="reverse", chunk_size=20)(POINT).numpy()
    for name, line in zip(names, said.splitlines(), strict=True):
        codes, begun = json.loads(line), set()
        assert codes == [-signal.SIGKILL] * (len(codes) - 1) + [0]
        for k in range(len(codes)):
            out, manifest = tmp_path / name / str(k) / name, tmp_path / name / str(k) / f"{name}.json"
            finished = json.loads(manifest.read_text())["finished"] if manifest.exists() else []
            done = finished[0][1] // 20 if finished else 0
            executor = Posting()
            jacobian = covector.jacobian(mixing, mode="reverse", chunk_size=20, executor=executor, out=out)
            assert np.array_equal(jacobian(POINT)[:], expected), k
            assert len(executor.tasks) == 2 - done + min(done, 1), k
            assert {path.name for path in out.parent.iterdir()} == {name, f"{name}.json"}, k
            assert not list(out.parent.rglob("*.partial")), k
            begun.add(done)
        assert begun == {0, 1, 2}


def test_blocks_stand_in_their_order_whichever_comes_first():
    """Also while another thread has a dual level open, which is one for the whole process."""
    rows = torch.arange(4.0)[:, None]
    with torch.autograd.forward_ad.dual_level():
        gathered = Gathered(4)
        gathered.add(2, [rows[2:]])
        gathered.add(0, [rows[:2]])
    assert torch.equal(gathered.whole()[0], rows)
