"""``slotwise run`` without a terminal: exit codes, signals, what the command is given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli._shell import COUNTS_INTERRUPTS, Shell, alive, command, end, line_of, until
from tests.redis._server import Server

from slotwise._admin.text import command_hint
from slotwise._cli.main import main

LINUX = sys.platform == "linux"
needs_guard = pytest.mark.skipif(not LINUX, reason="only Linux has a guard")


def sh(text: str) -> tuple[str, ...]:
    return ("--", "sh", "-c", text)


# ---------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 3"), 3),
        (("sh", "-c", "kill -KILL $$"), 128 + 9),
        (("./is-not-there",), 127),
        (("is-not-on-the-path",), 127),
        (("",), 127),
        (("./not-executable",), 126),
        ((".",), 126),
    ],
)
def test_the_exit_code_is_that_of_the_command(shell: Shell, words, code):
    (shell.folder / "not-executable").write_text("#!/bin/sh\n")
    ran = shell.run("run", "api", "--limit", 1, "--", *words)
    assert ran.returncode == code
    assert len(ran.stderr.splitlines()) == (1 if code in (126, 127) else 0)


# Opens more files than `select` can count, as a process with many connections has.
MANY_FILES = """
import os, resource, runpy, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
if most != resource.RLIM_INFINITY and most < 1200:
    sys.exit(77)
resource.setrlimit(resource.RLIMIT_NOFILE, (1200, most))
kept = [os.dup(2) for _ in range(1050)]
runpy.run_module("slotwise", run_name="__main__")
"""


@pytest.mark.parametrize(
    "words", [("run", "api", "--limit", "1", "--", "true"), ("acquire", "api", "--limit", "1")]
)
def test_commands_work_in_a_process_with_more_than_1024_open_files(shell: Shell, words):
    ran = shell.run_program(MANY_FILES, *words)
    if ran.returncode == 77:
        pytest.skip("this machine allows fewer open files")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_no_slot_in_time_is_75_and_the_command_is_not_started(most_shells: Shell):
    most_shells.occupy()
    enough = 0.05 if most_shells.url.startswith("process") else 3  # to connect, on a busy machine
    for patience in (("--no-wait",), ("--wait", enough)):
        ran = most_shells.run("run", "api", "--limit", 1, *patience, *sh("echo started"))
        assert (ran.returncode, ran.stdout) == (75, "")
        assert ran.stderr.startswith("slotwise run: no slot of 'api'")
        assert "1 of 1 held" in ran.stderr
        assert ran.stderr.count("\n") == 1


def test_a_command_that_ignores_term_is_killed_after_the_grace(shell: Shell):
    stubborn = "trap '' TERM; echo started; while :; do sleep 0.05; done"
    running = shell.start("run", "api", "--limit", 1, "--grace", 0.2, *sh(stubborn))
    assert line_of(running) == "started\n"
    [held] = shell.holders()
    assert shell.here("kick", held.acquisition_id, "--yes").returncode == 0
    assert end(running)[0] == 124


def test_a_kick_ends_the_command_with_124_and_the_next_gets_the_slot(any_shell: Shell):
    holder = any_shell.hold()
    waiting = any_shell.start("run", "api", "--limit", 1, *sh("echo mine"))
    any_shell.until_waiting(1)
    [held] = any_shell.holders()
    assert held.pid == holder.pid
    assert any_shell.here("kick", held.acquisition_id, "--yes").returncode == 0
    code, _, err = end(holder)
    assert code == 124
    assert "kicked" in err
    assert end(waiting)[:2] == (0, "mine\n")


@pytest.mark.parametrize(
    "words",
    [
        ("api", "--limit", "1"),
        ("--limit", "1", "--", "true"),
        ("", "--limit", "1", "--", "true"),
        ("api", "--limit", "0", "--", "true"),
        ("api", "--limit", "many", "--", "true"),
        ("api", "--limit", "4611686018427387904", "--", "true"),
        ("api", "--limit", "1", "--slots", "2", "--", "true"),
        ("api", "--limit", "1", "--wait", "1", "--no-wait", "--", "true"),
        ("api", "--limit", "1", "--wait", "-1", "--", "true"),
        ("api", "--limit", "1", "--wait", "inf", "--", "true"),
        ("api", "--limit", "1", "--ttl", "0", "--", "true"),
        ("api", "--limit", "1", "--xyzzy", "--", "true"),
        ("api", "--limit", "1", "true", "--flag-of-it"),
    ],
    ids=" ".join,
)
def test_words_that_make_no_sense_are_125_and_one_line(capsys, words):
    assert main(["run", *words]) == 125
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("slotwise run: ")
    assert err.endswith("; 'slotwise run --help' shows how\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("api", "--limt", "1"), "unknown flag --limt; did you mean --limit? 'slotwise"),
        (("api", "--limit", "1", "ls", "-l"), "unknown flag -l; those of CMD go after --;"),
        (("-api", "--limit", "1"), "unknown flag -api;"),
    ],
)
def test_a_flag_that_is_none_is_named_before_one_that_is_missing(capsys, words, told):
    assert main(["run", *words, "--", "true"]) == 125
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://x", "url must be one of"),
        ("memory://", "use process://"),
        ("process://relative/folder", "three slashes"),
        ("redis://127.0.0.1:1", "is it running"),
    ],
)
def test_its_own_failures_are_125_and_one_line(shell: Shell, url, words):
    ran = shell.run("run", "api", "--limit", 1, "--url", url, "--", "true")
    assert (ran.returncode, ran.stdout) == (125, "")
    assert ran.stderr.startswith("slotwise run: ")
    assert words in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_resized_value_wins_with_one_warning(most_shells: Shell):
    most_shells.occupy(limit=1)
    assert most_shells.here("resize", "api", 2).returncode == 0
    ran = most_shells.run("run", "api", "--limit", 1, "--no-wait", *sh("echo both run"))
    assert (ran.returncode, ran.stdout) == (0, "both run\n")
    assert ran.stderr == "slotwise run: 'api' was resized to 2: --limit 1 is ignored\n"


# ------------------------------------------------- what the command is given


def test_the_command_finds_its_acquisition_in_the_environment(most_shells: Shell):
    text = "echo $SLOTWISE_ACQUISITION_ID $SLOTWISE_SLOT_NUMBER $SLOTWISE_FENCING_TOKEN"
    tokens = []
    for _ in range(2):
        ran = most_shells.run("run", "api", "--limit", 3, *sh(text))
        acquisition_id, number, token = ran.stdout.split()
        assert acquisition_id
        assert number == "1"
        tokens.append(int(token))
    assert tokens[0] < tokens[1]


def test_the_command_has_stdin_stdout_and_stderr_as_its_own(shell: Shell):
    words = command("run", "api", "--limit", 1, *sh("cat; echo to stderr >&2"))
    ran = subprocess.run(
        words, input="typed\n", capture_output=True, text=True, env=shell.environment, check=True
    )
    assert (ran.stdout, ran.stderr) == ("typed\n", "to stderr\n")


def test_files_that_were_left_open_for_the_command_stay_open(shell: Shell):
    reading, writing = os.pipe()
    try:
        words = ("run", "api", "--limit", 1, *sh(f"echo hello > /dev/fd/{writing}"))
        started = shell.start(*words, pass_fds=[writing])
        assert end(started)[0] == 0
        assert os.read(reading, 100) == b"hello\n"
    finally:
        os.close(reading)
        os.close(writing)


def test_the_command_stays_in_the_process_group(shell: Shell):
    text = "import os; print(os.getpgrp(), os.getsid(0))"
    started = shell.start("run", "api", "--limit", 1, "--", sys.executable, "-c", text)
    _, out, _ = end(started)
    assert out.split() == [str(os.getpgrp()), str(os.getsid(0))]


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_the_command_starts_with_the_signals_as_they_were(most_shells: Shell):
    look = ("grep", "^Sig[BI]", "/proc/self/status")
    without = subprocess.run(look, capture_output=True, text=True, check=True)
    ran = most_shells.run("run", "api", "--limit", 1, "--", *look)
    assert ran.stdout == without.stdout


def test_what_nohup_ignores_stays_ignored(shell: Shell):
    release = shell.occupy()
    text = "kill -HUP $$; kill -HUP $PPID; echo survived"
    waiting = shell.start("run", "api", "--limit", 1, *sh(text), before="nohup")
    shell.until_waiting(1)
    waiting.send_signal(signal.SIGHUP)
    release()
    assert end(waiting)[:2] == (0, "survived\n")


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_the_exit_code_is_known_even_where_sigchld_is_ignored(shell: Shell):
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN);"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    look = "import signal, sys; sys.exit(3 if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN"
    words = command("run", "api", "--", sys.executable, "-c", f"{look} else 4)")
    ran = subprocess.run(
        [sys.executable, "-c", ignoring, *words],
        *(), capture_output=True, text=True, env=shell.environment, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (3, "")


# ------------------------------------------------------------------- signals


def test_a_ttl_may_be_longer_than_a_month(shell: Shell):
    ran = shell.run("run", "api", "--ttl", "1000d", "--grace", "100d", "--", "true")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_signals_sent_to_slotwise_are_passed_on(shell: Shell):
    names = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "WINCH")
    traps = "; ".join(f"trap 'echo got {name}' {name}" for name in names)
    text = f"{traps}; trap 'exit 9' TERM; echo ready; while :; do sleep 0.02; done"
    running = shell.start("run", "api", "--limit", 1, *sh(text))
    assert line_of(running) == "ready\n"
    for name in names:
        running.send_signal(getattr(signal, f"SIG{name}"))
        assert line_of(running) == f"got {name}\n"
    running.send_signal(signal.SIGTERM)
    assert end(running)[:2] == (9, "")
    assert shell.holders() == []


def test_a_signal_that_ends_the_command_is_128_plus_its_number(shell: Shell):
    holder = shell.hold()
    holder.send_signal(signal.SIGTERM)
    assert end(holder)[0] == 128 + signal.SIGTERM


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_the_wait_ends_it_and_leaves_the_queue(most_shells: Shell, number, code):
    most_shells.occupy()
    waiting = most_shells.start("run", "api", "--limit", 1, *sh("echo started"))
    most_shells.until_waiting(1)
    waiting.send_signal(number)
    assert end(waiting)[:2] == (code, "")
    assert (len(most_shells.holders()), most_shells.waiters()) == (1, [])


def test_a_signal_that_the_command_sends_to_slotwise_does_not_come_back(shell: Shell):
    # As with `kill 0`, which shells do to end their group: the command has had it by then.
    sends = "os.kill(os.getppid(), signal.SIGINT)\nprint('sent', flush=True)\nwhile True:"
    text = COUNTS_INTERRUPTS.replace("while True:", sends)
    running = shell.start("run", "api", "--limit", 1, "--", sys.executable, "-c", text)
    assert line_of(running).startswith("ready")
    assert line_of(running) == "sent\n"
    running.send_signal(signal.SIGUSR1)  # behind the other one, as signals keep their order
    assert line_of(running) == "interrupts in total: 0\n"


def kill_and_await_guard(slotwise: subprocess.Popen[str]) -> None:
    """End slotwise by kill -9, and return when its guard, which outlives it, has ended."""
    pid = slotwise.pid
    [guard] = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    slotwise.kill()
    until(lambda: not alive(guard), "the end of the guard")


@needs_guard
@pytest.mark.parametrize("flags", [(), ("--keep-descendants",)], ids=["", "keep"])
def test_kill_9_of_slotwise_frees_the_slot_for_those_who_wait(any_shell: Shell, flags):
    holder = any_shell.hold("api", *flags)
    waiting = any_shell.start("run", "api", "--limit", 1, *sh("echo mine"))
    any_shell.until_waiting(1)
    [held] = any_shell.holders()
    kill_and_await_guard(holder)
    # Without waiting: Redis itself would miss its heartbeats after 15 s.
    assert held.acquisition_id not in [each.acquisition_id for each in any_shell.holders()]
    assert end(waiting)[:2] == (0, "mine\n")
    assert any_shell.holders() == []


@needs_guard
def test_kill_9_of_a_waiter_takes_it_out_of_the_queue(any_shell: Shell):
    any_shell.occupy()
    waiting = any_shell.start("run", "api", "--limit", 1, "--", "true")
    any_shell.until_waiting(1)
    kill_and_await_guard(waiting)
    assert any_shell.waiters() == []


@needs_guard
def test_a_killed_slotwise_keeps_its_slot_on_a_server_until_everything_has_ended(
    redis_shell: Shell,
):
    """A killed process whose children live on is not dead to those who share the limit."""
    text = "trap '' TERM; sh -c 'echo $$; exec sleep 1000' & wait"
    holder = redis_shell.start("run", "api", "--limit", 1, *sh(text))
    pid = int(line_of(holder))
    look = f"kill -0 {pid} 2>/dev/null && echo overlap; echo done"
    following = redis_shell.start("run", "api", "--limit", 1, *sh(look))
    redis_shell.until_waiting(1)
    holder.kill()
    assert end(following)[:2] == (0, "done\n")


@needs_guard
def test_a_password_that_the_guard_needs_is_not_on_its_command_line(
    redis_shell: Shell, server: Server
):
    with server.client() as client:
        client.acl_setuser("ci", enabled=True, passwords=["+secret"], keys=["*"], channels=["*"],
                           categories=["+@all"])  # fmt: skip
    url = server.url.replace("redis://", "redis://ci:secret@")
    redis_shell.environment["SLOTWISE_URL"] = url
    words = ("run", "api", "--limit", 1, *sh("echo $PPID; exec sleep 1000"))
    holder = redis_shell.start(*words, before="env")  # a fork would have another command line
    guard = int(line_of(holder))
    assert b"secret" not in Path(f"/proc/{guard}/cmdline").read_bytes()
    assert len(redis_shell.holders()) == 1
    kill_and_await_guard(holder)
    assert redis_shell.holders() == []


# ------------------------------------------------------------------ together


def test_it_starts_without_the_modules_that_take_long_to_import(shell: Shell):
    words = [sys.executable, "-X", "importtime", *command("run", "api", "--limit", 1)[1:]]
    ran = subprocess.run(
        [*words, "--", "true"], capture_output=True, text=True, env=shell.environment, check=True
    )
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "slotwise.processes" in imported
    slow = {"asyncio", "hashlib", "lzma", "redis", "slotwise.web"}
    seldom_used = {"datetime", "pathlib", "secrets", "socket"}
    for_others = {"slotwise._core.event", "slotwise._core.stats"}
    assert imported & (slow | seldom_used | for_others | {"slotwise.tiers"}) == set()


@pytest.mark.parametrize("name", ["mm", "a b"])
def test_another_limit_than_the_one_in_use_names_the_command_that_changes_it(most_shells, name):
    most_shells.occupy(name, limit=3)
    ran = most_shells.run("run", name, "--limit", 4, "--", "true")
    assert ran.returncode == 125
    typed = "mm" if name == "mm" else "'a b'"
    assert (
        ran.stderr == f"slotwise run: {name!r} is in use with 3 slots: slotwise resize {typed} 4\n"
    )
    ran = most_shells.run("run", name, "--limit", 4, "--url", most_shells.url, "--", "true")
    assert ran.stderr.endswith(f"slotwise resize {typed} 4 --url {most_shells.url}\n")


def test_the_command_that_is_named_has_no_password_in_it():
    for url in ("redis://:secret@h", "redis://h?passwrod=secret"):
        assert command_hint("resize", "a", "2", url=url) == "slotwise resize a 2 --url ..."
    url = "redis://h?namespace=app"
    assert command_hint("show", "a b", url=url) == f"slotwise show 'a b' --url '{url}'"
