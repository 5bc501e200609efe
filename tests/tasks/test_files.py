"""Jacobians in files: written block by block, and continued after any kind of end."""

import io
import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from executor_functions import POINT, Posting, leaves_a_file, mixing

import covector
from covector.errors import ResumeError
from forked import printed
from watched import Terminal, errors_shown

zarr = pytest.importorskip("zarr", reason="out=...zarr needs zarr")

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


@pytest.mark.parametrize("terminal", [Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_a_bar_shows_how_far_it_is(terminal, tmp_path, monkeypatch):
    """On a terminal alone; what is continued begins with what is finished."""
    errors_shown(monkeypatch, terminal)
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
