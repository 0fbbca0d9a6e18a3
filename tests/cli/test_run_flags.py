"""``slotwise run`` as cron jobs and scripts use it: skips, limits, nesting, a lost slot."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys

import pytest
from tests import _fresh_processes
from tests.cli._shell import Shell, command, end, line_of
from tests.redis._server import Server

from slotwise._cli.flags import duration, seconds, some_seconds
from slotwise._cli.slot_flags import limit


def test_a_skip_can_be_quiet_and_have_its_own_exit_code(shell: Shell):
    shell.occupy()
    busy = ("run", "api", "--limit", 1, "--no-wait")
    ran = shell.run(*busy, "--quiet", "--busy-exit", 0, "--", "false")
    assert (ran.returncode, ran.stderr) == (0, "")
    ran = shell.run(*busy, "--busy-exit", 255, "--", "false")
    assert (ran.returncode, ran.stderr.count("\n")) == (255, 1)
    assert shell.here("close", "api", "--yes").returncode == 0
    ran = shell.run(*busy, "--quiet", "--", "false")
    assert (ran.returncode, ran.stderr) == (75, "")


def test_quiet_silences_nothing_but_skips(shell: Shell):
    shell.occupy("api", limit=2)
    ran = shell.run("run", "api", "--limit", 1, "--quiet", "--busy-exit", 0, "--", "true")
    assert (ran.returncode, ran.stderr.count("\n")) == (125, 1)
    ran = shell.run("run", "api", "--quiet", "--", "./is-not-there")
    assert (ran.returncode, ran.stderr.count("\n")) == (127, 1)


@pytest.mark.parametrize("code", ["-1", "256", "x"])
def test_an_exit_code_is_0_to_255(shell: Shell, code):
    ran = shell.here("run", "api", f"--busy-exit={code}", "--", "true")
    assert (ran.returncode, "--busy-exit must be" in ran.stderr) == (125, True)


def test_without_a_limit_it_is_that_of_the_semaphore_or_1(most_shells: Shell):
    assert most_shells.run("run", "api", "--", "true").returncode == 0
    most_shells.occupy("api", limit=1)
    assert most_shells.run("run", "api", "--no-wait", "--", "true").returncode == 75
    most_shells.occupy("wide", limit=3)
    assert most_shells.run("run", "wide", "--no-wait", "--slots", 2, "--", "true").returncode == 0
    assert most_shells.run("run", "wide", "--no-wait", "--slots", 3, "--", "true").returncode == 75


def test_a_limit_can_be_a_share_of_the_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6), raising=False)
    shares = ("50%", "25%", "1%", "100%", "150%", "99.9%")
    assert [limit(share) for share in shares] == [3, 1, 1, 6, 9, 5]
    for wrong in ("0%", "-5%", "%", "x%", "nan%"):
        with pytest.raises(Exception, match=f"must be .*%.*, not .*{wrong}"):
            limit(wrong)


@pytest.mark.parametrize("wrong", ["many", "2.5", ""])
def test_a_limit_that_is_not_a_number_is_told_that_percentages_will_do(shell: Shell, wrong: str):
    ran = shell.here("run", "api", f"--limit={wrong}", "--", "true")
    words = "--limit must be a whole number, or a percentage of the cores such as 50%, not"
    assert (ran.returncode, f"{words} {wrong!r}" in ran.stderr) == (125, True)


def nested(*flags: object, inside: int, name: str = "api") -> str:
    """Return a command that runs itself inside of itself."""
    words: list[object] = ["run", name, *flags, "--", "echo", "done"]
    for _ in range(inside):
        words = ["run", "api", *flags, "--", *command(*words)]
    return shlex.join(command(*words))


@pytest.mark.parametrize("value", [1, 2])
def test_a_nested_run_that_can_only_wait_for_itself_says_so_at_once(most_shells: Shell, value):
    ran = subprocess.run(
        ["sh", "-c", nested("--limit", value, "--wait", 60, inside=value)],
        *(), capture_output=True, text=True, env=most_shells.environment, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (125, "")
    assert "would wait for itself" in ran.stderr


def test_a_nested_run_of_another_name_runs(shell: Shell):
    words = nested("--limit", 1, inside=1, name="other")
    ran = subprocess.run(
        ["sh", "-c", words], capture_output=True, text=True, env=shell.environment, check=True
    )
    assert ran.stdout == "done\n"


def test_a_nested_run_waits_for_others_that_hold_the_same(shell: Shell):
    release = shell.occupy(limit=2)
    running = shell.start("run", "api", "--limit", 2, "--", *command("run", "api", "--", "true"))
    shell.until_waiting(1)
    release()
    assert end(running)[0] == 0


@pytest.mark.parametrize(("on_loss", "code"), [("stop", 124), ("continue", 7)])
def test_what_becomes_of_the_command_when_its_slot_is_lost(shell: Shell, on_loss, code):
    text = "trap 'exit 7' USR1; echo on; while :; do sleep 0.02; done"
    running = shell.start(
        "run", "api", "--limit", 1, f"--on-loss={on_loss}", "--", "sh", "-c", text
    )
    assert running.stderr is not None
    assert line_of(running) == "on\n"
    for file in shell.folder.glob("slots/api*"):
        file.unlink()
    shell.occupy()  # whoever makes the file anew tells those of the old one
    told = running.stderr.readline()
    assert ("continues without its slot" in told) is (on_loss == "continue")
    running.send_signal(signal.SIGUSR1)
    assert end(running)[0] == code


def test_on_loss_continue_does_not_keep_a_command_that_is_kicked(shell: Shell):
    holder = shell.hold("api", "--on-loss=continue")
    [held] = shell.holders()
    assert shell.here("kick", held.acquisition_id, "--yes").returncode == 0
    assert end(holder)[0] == 124


def test_a_server_that_does_not_answer_is_125_and_not_busy(redis_shell: Shell, server: Server):
    server.process.send_signal(signal.SIGSTOP)
    try:
        for flags in (("--limit", 1), ()):
            ran = redis_shell.run("run", "api", *flags, "--wait", 0.2, "--quiet", "--", "true")
            assert (ran.returncode, "did not answer" in ran.stderr) == (125, True)
            assert "in 1.9 s" not in ran.stderr  # that would be longer than the wait
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_a_file_that_somebody_keeps_locked_is_125_and_not_busy(shell: Shell):
    shell.occupy()()
    [path] = shell.folder.glob("slots/api*")
    words = [sys.executable, "-m", "tests.processes._lock_hog", str(path)]
    with _fresh_processes.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as hog:
        assert hog.stdout is not None
        assert hog.stdout.readline() == b"locked\n"
        ran = shell.run("run", "api", "--limit", 1, "--wait", 1, "--", "true")
        assert (ran.returncode, str(hog.pid) in ran.stderr) == (125, True)
        hog.kill()


# --------------------------------------------------------------- values of flags


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("90", 90.0), ("0.5", 0.5), ("10s", 10.0), ("250ms", 0.25), ("10m", 600.0)),
        *(("1h", 3600.0), ("1.5d", 129600.0), ("0ms", 0.0), ("1e3", 1000.0)),
    ],
)
def test_a_duration_is_seconds_or_has_a_unit(text, expected):
    assert duration(text) == seconds(text) == expected


@pytest.mark.parametrize(
    "text", ["", "m", "h1", "1x", "1 week", "nan", "inf", "infs", "nanms", "1h30", "ten", "1mm"]
)
def test_what_is_not_a_duration_is_refused(text):
    assert duration(text) is None
    with pytest.raises(argparse.ArgumentTypeError, match=r"10m, 1h or 1\.5d"):
        seconds(text)


def test_bounds_hold_for_units_too():
    for text in ("0", "0s", "-1h"):
        with pytest.raises(argparse.ArgumentTypeError, match="more than 0"):
            some_seconds(text)
