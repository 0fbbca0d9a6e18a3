"""``slotwise acquire`` and ``slotwise release``, as scripts use them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess

import pytest
from tests.cli._shell import HANG, Shell, command, end, until
from tests.redis._server import free_port

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")

SLOTWISE = shlex.join(command())


def script(shell: Shell, text: str, program: str = "bash") -> subprocess.Popen[str]:
    """Start a script, in which $slotwise is the command."""
    started = subprocess.Popen(
        [program, "-c", text],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**shell.environment, "slotwise": SLOTWISE},
        cwd=shell.folder,
    )
    shell.adopt(started)
    return started


def test_it_prints_the_id_and_holds_until_the_release(any_shell: Shell):
    text = """
        id=$($slotwise acquire api --limit 1 --for-pid $$) || exit 9
        echo "$id"; read line; $slotwise release "$id"; echo $?; $slotwise release "$id"; echo $?
        read line
    """
    running = script(any_shell, text)
    assert running.stdin is not None
    assert running.stdout is not None
    told = running.stdout.readline()
    [held] = any_shell.holders()
    assert told == f"{held.acquisition_id}\n"
    assert held.label == f"for pid {running.pid}"
    busy = any_shell.run("acquire", "api", "--limit", 1, "--no-wait", "--for-pid", os.getpid())
    assert (busy.returncode, busy.stdout, busy.stderr.count("\n")) == (75, "", 1)
    running.stdin.write("on\n")
    running.stdin.flush()
    assert [running.stdout.readline() for _ in range(2)] == ["0\n", "1\n"]
    assert any_shell.holders() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_script_that_ends_gives_its_slot_back_however_it_ends(shell: Shell, number):
    running = script(shell, "$slotwise acquire api; exec sleep 1000", "sh")
    assert running.stdout is not None
    assert running.stdout.readline()
    assert len(shell.holders()) == 1
    running.send_signal(number)
    until(lambda: shell.holders() == [], "the slot is free")


def test_it_keeps_no_file_of_the_script_open(shell: Shell):
    """Whoever reads what a script prints must not wait for what holds its slot."""
    text = "exec 7>&1; $slotwise acquire api --for-pid $1 7>&1"
    ran = subprocess.run(
        ["bash", "-c", text, "script", str(os.getpid())],
        capture_output=True,
        text=True,
        env={**shell.environment, "slotwise": SLOTWISE},
        timeout=HANG,
        check=True,
    )
    [held] = shell.holders()
    assert ran.stdout == f"{held.acquisition_id}\n"
    assert shell.run("release", held.acquisition_id).returncode == 0


@pytest.mark.parametrize("pid", ["4194304", "-1", "0", str(2**70)])
def test_an_unknown_pid_is_125_and_nothing_is_held(shell: Shell, pid):
    ran = shell.run("acquire", "api", f"--for-pid={pid}")
    assert (ran.returncode, ran.stdout) == (125, "")
    assert ran.stderr == f"slotwise acquire: there is no process {pid}\n"
    assert shell.holders() == []


def test_a_process_that_ends_during_the_wait_is_125(shell: Shell):
    shell.occupy()
    watched = subprocess.Popen(["sleep", "1000"])
    waiting = shell.start("acquire", "api", "--for-pid", watched.pid)
    shell.until_waiting(1)
    watched.kill()
    watched.wait()
    told = f"slotwise acquire: process {watched.pid} has ended\n"
    assert end(waiting) == (125, "", told)


@pytest.mark.parametrize("who", ["slotwise", "the script"])
def test_a_waiter_that_is_killed_leaves_the_queue(shell: Shell, who):
    shell.occupy()
    running = script(shell, "$slotwise acquire api --for-pid $$ & echo $!; wait")
    assert running.stdout is not None
    waiting = int(running.stdout.readline())
    shell.until_waiting(1)
    os.kill(waiting if who == "slotwise" else running.pid, signal.SIGKILL)
    shell.until_waiting(0)
    assert len(shell.holders()) == 1


@pytest.mark.skipif(not os.path.isdir("/proc/self/cwd"), reason="no /proc")  # noqa: PTH112
def test_one_that_is_killed_before_it_has_printed_the_id_holds_nothing(shell: Shell):
    release = shell.occupy()
    waiting = shell.start("acquire", "api", "--for-pid", os.getpid())
    shell.until_waiting(1)
    [behind] = shell.waiters()
    waiting.send_signal(signal.SIGSTOP)
    release()
    until(lambda: os.readlink(f"/proc/{behind.pid}/cwd") == "/", "it holds, and has told the id")  # noqa: PTH115
    assert [each.acquisition_id for each in shell.holders()] == [behind.acquisition_id]
    waiting.kill()
    assert waiting.communicate(timeout=HANG)[0] == ""
    until(lambda: shell.holders() == [], "the slot is free")


# A program that has slotwise as a part; the process in the background is its child.
CALLS_ACQUIRE = """
import os, sys
from slotwise._cli.main import main
main(["acquire", "api", "--limit", "1", "--for-pid", str(os.getpid()), "--url", sys.argv[1]])
with open("returned", "a") as file:
    file.write("once\\n")
os.wait()
"""


def test_the_process_in_the_background_never_returns_to_the_caller(shell: Shell):
    nobody = f"redis://127.0.0.1:{free_port()}"
    shell.run_program(CALLS_ACQUIRE, nobody)
    assert (shell.folder / "returned").read_text() == "once\n"


def test_a_process_that_has_ended_is_125_and_nothing_is_held(shell: Shell):
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    ran = shell.run("acquire", "api", "--for-pid", zombie.pid)
    zombie.wait()
    assert (ran.returncode, ran.stdout) == (125, "")
    assert ran.stderr == f"slotwise acquire: process {zombie.pid} has ended\n"
    assert shell.holders() == []
