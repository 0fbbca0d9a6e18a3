"""The second part of the demo: ``slotwise run``, ``ls`` and ``show``, as a person would type them.

The commands are real processes, in a temporary directory of their own; each is shown before
it runs, and what it prints is what it prints.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from slotwise._cli.backends import open_backend
from slotwise.errors import SlotwiseError

_JOB = 'sleep 1.5; echo "done: slot $SLOTWISE_SLOT_NUMBER, token $SLOTWISE_FENCING_TOKEN"'
_JOBS = 3
_PATIENCE = 10.0  # for processes to start on a busy machine


def show() -> None:
    """Run three commands with two slots, so that one waits, and list them."""
    with tempfile.TemporaryDirectory(prefix="slotwise-demo-") as directory:
        url = f"process://{Path(directory) / 'slots'}"
        _type(f"export SLOTWISE_URL={shlex.quote(url)}", note="no server: a directory will do")
        jobs = []
        try:
            for number in range(1, _JOBS + 1):
                words = ["run", "backup", "--limit", "2", "--label", f"job {number}"]
                words += ["--", "sh", "-c", _JOB]
                _type(f"{_shown(*words)} &")
                # Not the terminal: the line that shows the wait would run into the tables.
                jobs.append(_start(url, *words, stderr=subprocess.PIPE))
                _until_there(url, jobs)
            for look in (["ls"], ["show", "backup"]):
                _type(_shown(*look))
                _start(url, *look).wait()
            _type("wait")
            for job in jobs:
                _, complaints = job.communicate()
                sys.stderr.write(complaints or "")
            _type(_shown("ls"), note="every slot was released")
            _start(url, "ls").wait()
        finally:
            for job in jobs:
                if job.poll() is None:
                    job.terminate()
                    job.communicate()


def _until_there(url: str, jobs: list[subprocess.Popen[str]]) -> None:
    """Wait until each job holds, waits or has ended: where Python starts slowly, some have."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        ended = sum(job.poll() is not None for job in jobs)
        try:
            stats = open_backend(url).find("backup").stats_sync()
            if ended + stats.acquired_slots + stats.waiting >= len(jobs):
                return
        except SlotwiseError:  # not made yet
            pass
        time.sleep(0.02)


def _start(url: str, *words: str, stderr: int | None = None) -> subprocess.Popen[str]:
    environment = {**os.environ, "SLOTWISE_URL": url}
    command = [sys.executable, "-m", "slotwise", *words]
    return subprocess.Popen(command, env=environment, stderr=stderr, text=True)  # noqa: S603


def _type(line: str, *, note: str = "") -> None:
    print(f"\n$ {line}" + (f"   # {note}" if note else ""), flush=True)  # noqa: T201


def _shown(*words: str) -> str:
    return shlex.join(("slotwise", *words))
