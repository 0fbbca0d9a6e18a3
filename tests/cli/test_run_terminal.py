"""``slotwise run`` as typed into a terminal: the status line, Ctrl-C, Ctrl-Z, closing it."""

from __future__ import annotations

import os
import shlex
import signal
import sys

import pexpect
import pytest
from tests.cli._shell import COUNTS_INTERRUPTS, Shell, alive, command, ended, until

COUNTING = ("run", "api", "--limit", 1, "--", sys.executable, "-c", COUNTS_INTERRUPTS)


def test_the_status_line_tells_the_place_in_the_queue_and_who_holds(most_shells: Shell):
    holder = most_shells.hold("api", "--label", "night shift")
    terminal = most_shells.terminal("run", "api", "--limit", 1, "--", "echo", "my turn")
    terminal.expect_exact("waiting for 'api': 1st of 1 in line; 1 of 1 held, by pid ")
    terminal.expect_exact(f"{holder.pid} 'night shift' for ")
    holder.terminate()
    terminal.expect_exact("\r\x1b[K")  # the line is wiped before the command speaks
    terminal.expect_exact("my turn")
    assert ended(terminal) == 0


def test_the_status_line_never_reaches_a_file(shell: Shell):
    release = shell.occupy()
    waiting = shell.start("run", "api", "--limit", 1, "--", "echo", "my turn")
    shell.until_waiting(1)
    release()
    assert waiting.communicate(timeout=30) == ("my turn\n", "")


def test_ctrl_c_ends_the_wait_with_130_and_leaves_the_queue(most_shells: Shell):
    most_shells.occupy()
    terminal = most_shells.terminal("run", "api", "--limit", 1, "--", "echo", "started")
    terminal.expect_exact("1st of 1 in line")
    terminal.sendintr()
    assert ended(terminal) == 130
    assert "started" not in terminal.before
    assert (len(most_shells.holders()), most_shells.waiters()) == (1, [])


def test_ctrl_c_reaches_the_command_once(shell: Shell):
    terminal = shell.terminal(*COUNTING)
    terminal.expect_exact("ready")
    terminal.sendintr()
    terminal.expect_exact("interrupt 1")
    # If slotwise had passed it on, it had done so before this: signals keep their order.
    os.kill(terminal.pid, signal.SIGUSR1)
    terminal.expect_exact("interrupts in total: 1")
    terminal.sendintr()
    terminal.expect_exact("interrupt 2")
    os.kill(terminal.pid, signal.SIGTERM)
    assert ended(terminal) == 128 + signal.SIGTERM


def test_the_command_has_the_terminal_as_its_own(shell: Shell):
    text = "test -t 0 && test -t 1 && test -t 2 && read line && echo you said $line"
    terminal = shell.terminal("run", "api", "--limit", 1, "--", "sh", "-c", text)
    terminal.sendline("hello")
    terminal.expect_exact("you said hello")
    # There was no wait, so that there is no line of ours to wipe: it may be a prompt's.
    assert "\x1b" not in terminal.before
    assert ended(terminal) == 0


@pytest.fixture
def bash(shell: Shell) -> pexpect.spawn:
    """A shell with job control, as people have it."""
    terminal = shell.in_terminal(["bash", "--norc", "--noprofile", "-i"])
    terminal.sendline("PS1='pro''mpt> '")
    terminal.expect_exact("prompt> ")
    return terminal


def typed(*words: object) -> str:
    return shlex.join(command(*words))


def test_ctrl_z_stops_the_job_and_fg_continues_it(shell: Shell, bash: pexpect.spawn):
    bash.sendline(typed("run", "api", "--limit", 1, "--", "sh", "-c", "echo on; exec cat"))
    bash.expect_exact("on\r\n")
    bash.sendcontrol("z")
    bash.expect_exact("Stopped")
    bash.expect_exact("prompt> ")
    assert len(shell.holders()) == 1  # it keeps its slot
    bash.sendline("fg")
    bash.expect_exact("slotwise run")
    bash.sendline("still here")
    bash.expect_exact("still here\r\nstill here\r\n")
    bash.sendcontrol("d")
    bash.expect_exact("prompt> ")
    bash.sendline("echo code $?")
    bash.expect_exact("code 0")


def test_ctrl_z_stops_the_wait_and_it_keeps_its_place(shell: Shell, bash: pexpect.spawn):
    release = shell.occupy()
    bash.sendline(typed("run", "api", "--limit", 1, "--", "echo", "my", "turn"))
    bash.expect_exact("1st of 1 in line")
    bash.sendcontrol("z")
    bash.expect_exact("Stopped")
    bash.expect_exact("prompt> ")
    assert len(shell.waiters()) == 1
    release()
    bash.sendline("fg")
    bash.expect_exact("my turn\r\n")


def test_a_waiting_job_in_the_background_leaves_the_terminal_alone(
    shell: Shell, bash: pexpect.spawn
):
    release = shell.occupy()
    bash.sendline(typed("run", "api", "--limit", 1, "--", "echo", "my", "turn") + " &")
    bash.expect_exact("prompt> ")
    shell.until_waiting(1)
    release()
    bash.expect_exact("my turn\r\n")
    assert "waiting for" not in bash.before


def test_a_terminal_that_is_closed_ends_the_command_too(shell: Shell):
    terminal = shell.terminal(*COUNTING)
    terminal.expect(r"ready (\d+)")
    pid = int(terminal.match[1])
    terminal.ptyproc.fileobj.close()  # and nothing else: close() would also send signals
    terminal.closed = terminal.ptyproc.closed = True
    until(lambda: not alive(pid), "the end of the command")
    until(lambda: shell.holders() == [], "the slot is free")


def test_where_the_kernel_does_not_tell_the_sender_the_foreground_is_a_good_guess(shell: Shell):
    """Other systems have no signalfd: this is Linux, made to do as they do."""
    text = (
        "import sys, types; from slotwise._cli import main, signals;"
        "signals.sys = types.SimpleNamespace(platform='elsewhere');"
        "sys.exit(main.main(['run', *sys.argv[1:]]))"
    )
    shell.occupy("other")
    waiting = shell.in_terminal(
        [sys.executable, "-c", text, "other", "--limit", "1", "--", "echo", "started"]
    )
    waiting.expect_exact("1st of 1 in line")
    waiting.sendintr()
    assert ended(waiting) == 130
    terminal = shell.in_terminal([sys.executable, "-c", text, *map(str, COUNTING[1:])])
    terminal.expect_exact("ready")
    terminal.sendintr()
    terminal.expect_exact("interrupt 1")
    os.kill(terminal.pid, signal.SIGUSR1)
    terminal.expect_exact("interrupts in total: 1")
    os.kill(terminal.pid, signal.SIGTERM)
    assert ended(terminal) == 128 + signal.SIGTERM
