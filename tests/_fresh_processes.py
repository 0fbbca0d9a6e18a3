"""Run programs in processes of their own, without the time that Python takes to load others' code.

A process that has imported what slotwise imports of the standard library and of redis-py, and
nothing of slotwise, forks for each program. So a program finds what a fresh interpreter would.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_FORKS = r"""
import gc, json, os, sys
import asyncio, concurrent.futures, dataclasses, heapq, inspect, ssl, subprocess, typing
import redis, redis.asyncio, hiredis

gc.collect()
gc.freeze()
while line := sys.stdin.readline():
    child = os.fork()
    if not child:
        break
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
else:
    sys.exit()
# What follows is the child: it ends as any interpreter does.
wanted = json.loads(line)
os.chdir(wanted["folder"])
os.environ.clear()
os.environ.update(wanted["environment"])
for descriptor, file in enumerate((os.devnull, wanted["out"], wanted["err"])):
    flags = os.O_RDWR | os.O_CREAT | (os.O_TRUNC if descriptor else 0)
    os.dup2(os.open(file, flags), descriptor)
sys.stdin = open(0, closefd=False)
sys.argv = ["-c"]
sys.warnoptions.append("error")
__import__("warnings").simplefilter("error")
main = type(sys)("__main__")
sys.modules["__main__"] = main
code = compile(wanted["code"], "<string>", "exec")
exec(code, main.__dict__)
"""


class FreshProcesses:
    """Runs programs, one after the other; warnings are errors in them."""

    def __init__(self) -> None:
        self._forking = subprocess.Popen(
            [sys.executable, "-c", _FORKS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # to end all that it has started
        )

    def run(
        self, code: str, folder: Path, environment: Mapping[str, str], *, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end; return its exit code, and what it printed."""
        assert self._forking.stdin is not None
        assert self._forking.stdout is not None
        out, err = Path(f"{folder}.out"), Path(f"{folder}.err")
        wanted = {
            "code": code,
            "folder": str(folder),
            "environment": dict(environment),
            "out": str(out),
            "err": str(err),
        }
        print(json.dumps(wanted), file=self._forking.stdin, flush=True)
        ready, _, _ = select.select([self._forking.stdout], [], [], timeout)
        if not ready:
            os.killpg(self._forking.pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(code, timeout, out.read_text(), err.read_text())
        status = int(self._forking.stdout.readline())
        return subprocess.CompletedProcess([], status, out.read_text(), err.read_text())

    def __enter__(self) -> FreshProcesses:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._forking:
            assert self._forking.stdin is not None
            self._forking.stdin.close()
