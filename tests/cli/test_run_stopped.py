"""``slotwise run`` whose command is stopped and continued, at every moment of that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli._shell import HANG, Shell, end, line_of, state_of, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def job(shell: Shell) -> tuple[subprocess.Popen[str], int]:
    """A command in a process group of its own, as a shell starts it; with the command's pid."""
    text = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    words = ("run", "api", "--limit", 1, "--", sys.executable, "-c", text)
    running = shell.start(*words, process_group=0)
    return running, int(line_of(running))


@pytest.mark.parametrize("stop", [signal.SIGSTOP, signal.SIGTSTP])
def test_continuing_slotwise_continues_a_command_that_was_stopped(job, stop):
    running, pid = job
    os.kill(pid, stop)
    until(lambda: state_of(pid) == "T", "the command is stopped")
    running.send_signal(signal.SIGCONT)
    until(lambda: state_of(pid) == "S", "the command sleeps in its pause again")
    running.send_signal(signal.SIGTERM)
    assert end(running)[0] == 128 + signal.SIGTERM


def test_slotwise_continues_its_command_even_if_it_has_not_heard_that_it_was_stopped(job):
    running, pid = job
    guard = parent_of(pid)
    os.kill(guard, signal.SIGSTOP)  # which would report it
    until(lambda: state_of(guard) == "T", "the guard is stopped")
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state_of(pid) == "T", "the command is stopped")
    running.send_signal(signal.SIGCONT)
    until(lambda: state_of(pid) == "S", "the command sleeps in its pause again")
    os.kill(guard, signal.SIGCONT)
    running.send_signal(signal.SIGTERM)
    assert end(running)[0] == 128 + signal.SIGTERM


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


QUEUE = """
import os, signal
from slotwise._cli.signals import SignalQueue
queue = SignalQueue()
for number in {before}:
    os.kill(os.getpid(), number)
assert [received.number for received in queue.read()] == [signal.SIGTSTP]
for number in {after}:
    os.kill(os.getpid(), number)
print("reading", flush=True)
print(queue.stop_here(signal.SIGTSTP), flush=True)
"""
STOP, CONTINUE = int(signal.SIGTSTP), int(signal.SIGCONT)


def test_a_queue_that_was_continued_after_a_stop_does_not_stop():
    program = QUEUE.format(before=[STOP], after=[CONTINUE])
    ran = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
        timeout=HANG,
        check=True,
    )
    assert ran.stdout == "reading\nTrue\n"
