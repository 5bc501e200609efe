"""Programs in processes of their own, forked from one that has loaded torch, which takes a second or two."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

_FORKS = """
import json, os, sys, traceback
import torch

answers = os.fdopen(os.dup(1), "w", buffering=1)
for line in sys.stdin:
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.dup2(writing, 1)
        code = 0
        try:
            exec(json.loads(line), {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc(file=sys.stdout)
            code = 1
        sys.stdout.flush()
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    print(json.dumps((os.waitstatus_to_exitcode(os.wait()[1]), text)), file=answers)
"""


@cache
def _parent() -> subprocess.Popen[str]:
    """Ends with this process, which closes its standard input."""
    return subprocess.Popen(
        [sys.executable, "-c", _FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def printed(program: str) -> str:
    """What a program prints that is run where torch is loaded and nothing of covector is."""
    parent = _parent()
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(json.dumps(program) + "\n")
    code, text = json.loads(parent.stdout.readline())
    assert code == 0, text
    return text
