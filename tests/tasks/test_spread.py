"""Pieces on the workers of an executor: each in a process of its own, with a time limit."""

import os
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor

from covector._pool import Spread, alone


def ending(piece):
    """In the process of a piece: it ends as it is told to."""
    if piece == "hangs":
        time.sleep(1000)
    if piece == "crashes":
        os._exit(7)
    print("printed by", piece)
    return piece.upper()


def test_each_piece_ends_by_itself():
    """One that crashes or hangs takes no other with it."""
    with ThreadPoolExecutor(3) as threads:
        ended = {one.piece: one for one in Spread(ending, threads, 60.0).run(["ends", "crashes"])}
        (hung,) = Spread(ending, threads, 1.0).run(["hangs"])
    assert (ended["ends"].value, ended["ends"].output) == ("ENDS", "printed by ends\n")
    assert (ended["crashes"].lost, ended["crashes"].why) == ("crashed", "the process ended with exit code 7")
    assert (hung.lost, hung.why) == ("timed out", "the time limit of 1 s was reached")


class Losing(Executor):
    """Loses the worker of one piece."""

    def submit(self, fn, /, *args, **kwargs):
        assert fn is alone
        future = Future()
        if args[-1] == "lost":
            future.set_exception(BrokenExecutor("a worker was killed"))
        else:
            future.set_result(args[-1])
        return future


def test_a_piece_whose_worker_is_lost_has_crashed():
    """The others are not lost with it."""
    kept, lost = sorted(Spread(ending, Losing(), 10.0).run(["kept", "lost"]), key=lambda one: one != "kept")
    assert kept == "kept"
    assert (lost.piece, lost.lost) == ("lost", "crashed")
    assert "the executor lost its workers" in lost.why
