"""``slotwise resize``, ``kick``, ``close`` and ``open``."""

from __future__ import annotations

import pytest
from tests.cli._shell import Shell, end, ended, until


def test_resize_lets_those_in_who_wait(most_shells: Shell):
    most_shells.occupy()
    waiting = most_shells.start("run", "api", "--limit", 1, "--", "echo", "mine")
    most_shells.until_waiting(1)
    ran = most_shells.here("resize", "api", 2)
    assert (ran.returncode, ran.stdout) == (0, "'api' has 2 slots now, 1 before\n")
    assert end(waiting)[:2] == (0, "mine\n")
    assert most_shells.json("show", "api")["value"] == 2


def test_what_a_message_says_to_type_is_for_the_same_place(shell: Shell):
    url = ("--url", f"process://{shell.folder}/elsewhere")
    other = Shell(url[1], shell.folder)
    release = other.occupy()
    told = shell.here("kick", "unknown", "--yes", *url).stderr
    assert f"'slotwise show NAME {' '.join(url)}' lists the ids" in told
    told = shell.here("forget", "api", *url).stderr
    assert f"'slotwise show api {' '.join(url)}' lists by whom" in told
    told = shell.here("close", "api", "--yes", *url).stdout
    assert f"'slotwise open api {' '.join(url)}' undoes it" in told
    release()


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_a_value_that_is_none_is_a_usage_error(shell: Shell, value):
    shell.occupy()
    ran = shell.here("resize", "api", "--", value)
    assert ran.returncode == 2
    assert ran.stderr.startswith("slotwise resize: ")
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("", 2)])
def test_kick_asks_on_a_terminal(shell: Shell, answer, code):
    holder = shell.hold("api", "--label", "night shift")
    [held] = shell.holders()
    terminal = shell.terminal("kick", held.acquisition_id)
    terminal.expect_exact(f"Kick pid {holder.pid} 'night shift', which has held 1 slot of 'api'")
    terminal.expect_exact("[y/N]: ")
    terminal.sendline(answer)
    assert ended(terminal) == code
    if code == 0:  # it keeps its slot until its command has ended
        until(lambda: not shell.holders(), "the release of the one who was kicked")
    else:
        assert len(shell.holders()) == 1


def test_without_a_terminal_kick_wants_yes(shell: Shell):
    shell.occupy()
    [held] = shell.holders()
    ran = shell.here("kick", held.acquisition_id)
    assert ran.returncode == 2
    assert ran.stderr == "slotwise kick: without a terminal to ask on, --yes is required\n"
    assert shell.holders() == [held]


@pytest.mark.parametrize("words", [("kick", "--yes"), ("release",)])
def test_what_ends_a_holder_never_suggests_another_one(any_shell: Shell, words):
    any_shell.occupy()
    [held] = any_shell.holders()
    ran = any_shell.here(*words, held.acquisition_id + "0")
    assert ran.returncode == 1
    assert "did you mean" not in ran.stderr
    assert ran.stderr.count(held.acquisition_id) == 1
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [("close", "--yes"), ("close", "--yes", "--tiers"), ("forget",)])
def test_closing_and_forgetting_never_suggest_another_name(any_shell: Shell, words):
    any_shell.occupy("job-18")
    ran = any_shell.here(*words, "job-17")
    assert ran.returncode == 1
    assert "'job-17'" in ran.stderr
    assert "job-18" not in ran.stderr


def test_a_waiter_can_not_be_kicked(most_shells: Shell):
    most_shells.occupy()
    most_shells.start("run", "api", "--limit", 1, "--", "true")
    most_shells.until_waiting(1)
    [waits] = most_shells.waiters()
    ran = most_shells.here("kick", waits.acquisition_id, "--yes")
    assert ran.returncode == 1
    assert "is a waiter of 'api'; it holds nothing yet" in ran.stderr
    assert most_shells.waiters() == [waits]


def test_close_rejects_waiters_and_newcomers_with_the_reason_until_open(any_shell: Shell):
    any_shell.occupy()
    waiter = any_shell.start("run", "api", "--limit", 1, "--", "true")
    any_shell.until_waiting(1)
    ran = any_shell.here("close", "api", "--reason", "freeze", "--yes")
    assert ran.returncode == 0
    assert ran.stdout.splitlines() == [
        "'api' is closed: rejected 1 waiter, 1 slot still held",
        "'slotwise open api' undoes it",
    ]
    rejected = "slotwise run: 'api' is closed everywhere: freeze\n"
    assert end(waiter) == (75, "", rejected)
    assert end(any_shell.start("run", "api", "--limit", 1, "--", "true")) == (75, "", rejected)
    assert len(any_shell.holders()) == 1
    head = any_shell.here("show", "api").stdout.splitlines()[0]
    assert head == "api: 1 of 1 slots held, 0 waiting, closed: freeze"
    [listed] = any_shell.json("ls")
    assert (listed["closed"], listed["reason"]) == (True, "freeze")
    titles, row = any_shell.here("ls").stdout.splitlines()
    assert titles.split() == ["NAME", "VALUE", "HELD", "WAITING", "CLOSED"]
    assert row.split() == ["api", "1", "1", "0", "freeze"]
    ran = any_shell.here("open", "api")
    assert (ran.returncode, ran.stdout) == (0, "'api' is open\n")
    assert any_shell.json("show", "api")["closed"] is False
    ran = any_shell.here("open", "api")
    assert (ran.returncode, ran.stdout) == (0, "'api' is open, and was not closed\n")


def test_forget_deletes_what_nobody_uses_with_all_that_it_remembers(any_shell: Shell):
    release = any_shell.occupy(limit=1)
    assert any_shell.here("resize", "api", 7).returncode == 0
    ran = any_shell.here("forget", "api")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "in use" in ran.stderr
    release()
    assert any_shell.here("forget", "api").returncode == 0
    ran = any_shell.here("forget", "api")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "there is no semaphore 'api'" in ran.stderr
    any_shell.occupy(limit=2)  # and nobody knows of the 7
    assert any_shell.json("show", "api")["value"] == 2
