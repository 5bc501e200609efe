"""On a local cluster of worker processes: the same results, and nothing is lost with a worker."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from executor_functions import POINT, chain, kills_its_process, mixing

import covector
from covector import cli
from covector.errors import WorkerError

distributed = pytest.importorskip("distributed", reason="pip install 'covector[dask]'")
zarr = pytest.importorskip("zarr", reason="pip install 'covector[dask]'")


@contextmanager
def cluster(**options):
    """Two processes with a thread each, started anew if they end."""
    import dask

    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", **options
        ) as started,
        distributed.Client(started, set_as_default=False) as client,
    ):
        yield client


def dense(client):
    """Blocks are the same bits as in this process, by both ways to name a cluster."""
    captured = POINT.cos()
    f = lambda x: mixing(x * captured)
    for mode in ("reverse", "forward"):
        serial = covector.jacobian(f, mode=mode, chunk_size=8)(POINT)
        for executor in (client.get_executor(), client):
            found = covector.jacobian(f, mode=mode, chunk_size=8, executor=executor)(POINT)
            assert torch.equal(found, serial)


def sparse(client):
    """Colours too."""
    plan = covector.jacobian_plan(chain, POINT, chunk_size=1)
    assert torch.equal(
        plan.with_executor(client.get_executor()).values(POINT.cos()), plan.values(POINT.cos())
    )


def a_worker_is_killed(client, tmp_path):
    """In the middle of its block, which another one computes."""
    marker = tmp_path / "marker"
    out = tmp_path / "matrix.zarr"
    jacobian = covector.jacobian(kills_its_process, chunk_size=8, executor=client.get_executor(), out=out)
    found = jacobian(POINT, str(marker), os.getpid())
    assert int(marker.read_text()) not in (os.getpid(), 0)
    assert np.array_equal(found[:], covector.jacobian(mixing, chunk_size=8)(POINT).numpy())


class Killing(np.ndarray):
    """An array that kills processes when the first block is written to it."""

    victims: tuple[int, ...] = ()

    def __setitem__(self, key, value):
        for number in self.victims:
            os.kill(number, signal.SIGKILL)
        self.victims = ()
        super().__setitem__(key, value)


def all_workers_are_killed(client):
    """With the function, and with finished blocks that nobody has fetched."""
    client.wait_for_workers(2)
    out = np.zeros((40, 30)).view(Killing)
    out.victims = tuple(client.run(os.getpid).values())
    assert out.victims
    executor = client.get_executor()
    found = covector.jacobian(mixing, mode="reverse", chunk_size=2, executor=executor, out=out)(POINT)
    assert out.victims == ()
    assert np.array_equal(found, covector.jacobian(mixing, mode="reverse", chunk_size=2)(POINT).numpy())


def a_killed_worker_is_missed(client, folder):
    """By a scheduler that tries nothing again: what the others survive are real losses."""
    folder.mkdir()
    client.cluster.scheduler.allowed_failures = 0
    with pytest.raises(WorkerError, match=r"the executor lost its workers .*: KilledWorker"):
        a_worker_is_killed(client, folder)


def shut_down(client):
    """An executor that takes no tasks says so."""
    executor = client.get_executor()
    executor.shutdown()
    with pytest.raises(WorkerError, match="the executor takes no tasks: it was shut down"):
        covector.jacobian(mixing, executor=executor)(POINT)


def test_on_a_local_cluster(tmp_path):
    """One cluster for all, because starting it takes longest."""
    with cluster() as client:
        dense(client)
        sparse(client)
        shut_down(client)
        a_worker_is_killed(client, tmp_path)
        all_workers_are_killed(client)
        a_killed_worker_is_missed(client, tmp_path / "again")


CASES = """
import os, time, covector

@covector.case((3,))
def right(x):
    return x.sin()

@covector.case((3,))
def wrong(x):
    print("printed by the case")
    return x.detach() * x

@covector.case((3,))
def crashing(x):
    os._exit(7)

@covector.case((3,))
def hanging(x):
    time.sleep(1000)
"""
OUTCOMES = {"right": "passed", "wrong": "failed", "crashing": "crashed", "hanging": "timed out"}


@pytest.mark.sweep
def test_cases_on_a_local_cluster(tmp_path, monkeypatch):
    """Each ends as it does in a process of this machine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cases.py").write_text(CASES)
    command = ["check", "cases.py", "--timeout", "20", "--json", "found.json", "--html", "pages"]
    with cluster() as client:
        code = cli.main([*command, "--dask", client.scheduler_info()["address"]])
    assert code == cli.Exit.FAILED
    found = {r["name"]: r for r in json.loads((tmp_path / "found.json").read_text())["results"]}
    assert {name: result["outcome"] for name, result in found.items()} == OUTCOMES
    assert "printed by the case" in found["wrong"]["output"]
    assert found["right"]["file"] == "cases.py"
    assert (tmp_path / "pages" / found["wrong"]["page"]).exists()


def test_no_scheduler_is_a_misuse(tmp_path, monkeypatch, capsys):
    """The command says where it looked."""
    monkeypatch.setattr(cli, "_CONNECTING", 0.2)
    (tmp_path / "cases.py").write_text(CASES)
    assert cli.main(["check", str(tmp_path / "cases.py"), "--dask", "tcp://127.0.0.1:1"]) == cli.Exit.MISUSED
    assert "--dask tcp://127.0.0.1:1: no scheduler answers there" in capsys.readouterr().err


def test_an_empty_address_is_a_misuse(tmp_path, capsys):
    """As of a variable that is not set; Dask would start a cluster of its own."""
    (tmp_path / "cases.py").write_text(CASES)
    assert cli.main(["check", str(tmp_path / "cases.py"), "--dask", ""]) == cli.Exit.MISUSED
    assert "--dask needs the address of a scheduler" in capsys.readouterr().err


def test_without_dask_the_command_says_what_to_install(tmp_path, monkeypatch, capsys):
    """In a sentence."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    (tmp_path / "cases.py").write_text(CASES)
    assert cli.main(["check", str(tmp_path / "cases.py"), "--dask", "tcp://127.0.0.1:1"]) == cli.Exit.MISUSED
    assert "pip install 'covector[dask]'" in capsys.readouterr().err


@pytest.mark.sweep
def test_the_script_of_the_page(tmp_path):
    """The few lines that it takes."""
    page = Path(__file__).parents[2].joinpath("docs", "executors.md").read_text(encoding="utf-8")
    script = tmp_path / "cluster.py"
    script.write_text(re.findall(r"```python\n(# cluster.py\n.*?)```", page, re.DOTALL)[0])
    run = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("(300, 400) reverse mode: 300 rows of 300 x 400")
    assert zarr.open_array(str(tmp_path / "jacobian.zarr"), mode="r").shape == (300, 400)


@pytest.mark.sweep
def test_a_matrix_that_no_worker_could_hold(tmp_path):
    """Blocks of a Jacobian of 1 GB, by workers that may have 900 MB, and are watched for it."""
    x = torch.linspace(0, 1, 4000, dtype=torch.float64)
    out = tmp_path / "matrix.zarr"
    weights = torch.linspace(0, 1, 8, dtype=torch.float64)
    f = lambda x: torch.tanh(torch.outer(weights, x.roll(1) * x).flatten())
    with cluster(memory_limit="900MB") as client:
        jacobian = covector.jacobian(f, chunk_size=32, max_memory="150MB", executor=client, out=out)
        found = jacobian(x)
        limits = client.run(lambda dask_worker: dask_worker.memory_manager.memory_limit)
    assert jacobian.plan.mode == "forward"
    assert found.nbytes > 1_000_000_000 > max(limits.values())
    for column in (0, 1234, 3999):
        direction = torch.zeros_like(x)
        direction[column] = 1
        expected = covector.jvp(f, (x,), (direction,))[1]
        assert torch.allclose(torch.from_numpy(found[:, column]), expected)
