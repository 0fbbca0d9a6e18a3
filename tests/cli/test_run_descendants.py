"""What becomes of the processes that the command of ``slotwise run`` has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli._shell import Shell, alive, end, line_of, until

from slotwise._cli import guard

NOBODY = 2**22  # the pid of a parent that has ended

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is the process group")

# A child in a session of its own, and one that has left its parent as a daemon does.
STARTS = """
setsid sleep 1000 >/dev/null 2>&1 & echo $!
sh -c 'setsid sleep 1000 >/dev/null 2>&1 & echo $!'
"""


class Started:
    """A run, and the processes that its command has started."""

    def __init__(self, shell: Shell, *flags: object, then: str, first: str = "") -> None:
        words = ("--", "sh", "-c", f"{first}{STARTS}echo $$; {then}")
        self.run = shell.start("run", "api", "--limit", 1, *flags, *words)
        self.pids = [int(line_of(self.run)) for _ in range(2)]
        self.command = int(line_of(self.run))

    def alive(self) -> list[bool]:
        return [alive(pid) for pid in self.pids]


@pytest.fixture
def started(shell: Shell) -> Iterator[list[Started]]:
    """Those that a test starts, to be cleaned up."""
    made: list[Started] = []
    yield made
    for each in made:
        for pid in filter(alive, each.pids):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(most_shells: Shell, started: list[Started]):
    def make(*flags: object, then: str = "wait", first: str = "") -> Started:
        started.append(Started(most_shells, *flags, then=then, first=first))
        return started[-1]

    return make


def test_the_end_of_the_ttl_ends_everything(start, most_shells: Shell):
    run = start("--ttl", "1s", then="sleep 1000; true")
    assert end(run.run)[0] == 124
    assert run.alive() == [False, False]
    assert most_shells.holders() == []


def test_a_term_is_for_the_command_and_ends_what_it_leaves_behind(start, most_shells: Shell):
    run = start(first="trap 'exit 9' TERM", then="while :; do sleep 0.02; done")
    run.run.send_signal(signal.SIGTERM)
    assert end(run.run)[0] == 9
    assert run.alive() == [False, False]
    assert most_shells.holders() == []


def test_kill_9_of_slotwise_ends_everything(start):
    run = start()
    run.run.kill()
    until(lambda: not any([*run.alive(), alive(run.command)]), "the end of everything")


def test_kill_9_of_the_guard_ends_everything_too(start, most_shells: Shell):
    run = start()
    guard = int(Path(f"/proc/{run.command}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    assert end(run.run)[0] == 128 + signal.SIGKILL
    until(lambda: not any([*run.alive(), alive(run.command)]), "the end of everything")
    assert most_shells.holders() == []


def test_a_command_that_ends_by_itself_leaves_its_background_jobs_alone(start, most_shells: Shell):
    run = start(then="exit 3")
    assert end(run.run)[0] == 3
    assert run.alive() == [True, True]
    assert most_shells.holders() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_descendants_can_be_kept(shell: Shell, started, number):
    run = Started(shell, "--keep-descendants", then="wait")
    started.append(run)
    run.run.send_signal(number)
    end(run.run)
    until(lambda: not alive(run.command), "the end of the command")
    assert run.alive() == [True, True]


def start_tidy(shell: Shell, started: list[Started]) -> Started:
    """Start a command with a job in the background that takes a while to end."""
    tidy = "(trap 'sleep 0.3; exit' TERM; echo ready >&2; while :; do sleep 0.02; done) & echo $!"
    run = Started(shell, "--grace", 30, then=f"{tidy}; wait")
    started.append(run)
    assert run.run.stderr is not None
    run.pids.append(int(line_of(run.run)))
    assert run.run.stderr.readline() == "ready\n"
    return run


def test_the_slot_is_given_back_only_when_everything_has_ended(shell: Shell, started):
    """The next one looks for what the one before has started."""
    run = start_tidy(shell, started)
    look = f"kill -0 {run.pids[-1]} 2>/dev/null && echo overlap; echo done"
    following = shell.start("run", "api", "--limit", 1, "--", "sh", "-c", look)
    shell.until_waiting(1)
    run.run.send_signal(signal.SIGTERM)
    assert end(run.run)[0] == 128 + signal.SIGTERM
    assert end(following)[:2] == (0, "done\n")


def test_a_kick_ends_everything_before_the_next_one_gets_the_slot(most_shells: Shell, started):
    run = start_tidy(most_shells, started)
    look = f"kill -0 {run.pids[-1]} 2>/dev/null && echo overlap; echo done"
    following = most_shells.start("run", "api", "--limit", 1, "--", "sh", "-c", look)
    most_shells.until_waiting(1)
    [held] = most_shells.holders()
    assert most_shells.here("kick", held.acquisition_id, "--yes").returncode == 0
    most_shells.here("kick", held.acquisition_id, "--yes")  # a second one changes nothing
    code, _, err = end(run.run)
    assert (code, "it was kicked" in err) == (124, True)
    assert run.alive() == [False, False, False]
    assert end(following)[:2] == (0, "done\n")


def test_replace_ends_everything_of_the_oldest_run_before_it_starts(most_shells: Shell, started):
    run = start_tidy(most_shells, started)
    waiting = most_shells.start("run", "api", "--limit", 1, "--", "echo", "in line")
    most_shells.until_waiting(1)
    look = f"kill -0 {run.pids[-1]} 2>/dev/null && echo overlap; echo replaced it"
    newcomer = most_shells.start("run", "api", "--replace", "--limit", 1, "--", "sh", "-c", look)
    code, _, err = end(run.run)
    assert (code, "it was kicked" in err) == (124, True)
    assert run.alive() == [False, False, False]
    assert end(newcomer)[:2] == (0, "replaced it\n")
    assert end(waiting)[:2] == (0, "in line\n")


# It stops a process at any moment, perhaps while that has the file's lock: then nobody can look.
@pytest.mark.soak
def test_a_kick_frees_the_slot_after_the_grace_even_if_nobody_releases_it(any_shell: Shell):
    run = any_shell.hold("api", "--grace", "100ms")
    run.send_signal(signal.SIGSTOP)
    [held] = any_shell.holders()
    assert any_shell.here("kick", held.acquisition_id, "--yes").returncode == 0
    until(lambda: any_shell.holders() == [], "the end of the grace")
    run.send_signal(signal.SIGCONT)
    code, _, err = end(run)
    assert (code, "it was kicked" in err) == (124, True), err


def test_a_process_whose_parent_ends_while_signals_are_sent_gets_its_signal(
    monkeypatch: pytest.MonkeyPatch,
):
    """The parent gets it first; for a moment, the process has neither parent nor adopter."""
    child = subprocess.Popen(["sleep", "1000"])
    real, answers = guard._status, [(b"S", NOBODY), (b"Z", 0)]
    monkeypatch.setattr(guard, "descendants", lambda _: [child.pid])
    monkeypatch.setattr(guard, "_status", lambda pid: answers.pop(0) if answers else real(pid))
    try:
        assert guard.signal_descendants(os.getpid(), signal.SIGTERM) == (True, set())
        assert child.wait(30) == -signal.SIGTERM
    finally:
        child.kill()
        child.wait()
