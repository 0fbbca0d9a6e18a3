"""``slotwise top``: live in a terminal, once elsewhere, and what samples can tell."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta

import pexpect
import pytest
from tests.cli._shell import Shell, command, ended, until
from tests.redis._server import Server

from slotwise import Adaptive, Claimant, Tier, Tiers
from slotwise._admin.backends import open_backend
from slotwise._admin.snapshot import WINDOW, Row, Sample, Sampler, Subject, Watcher
from slotwise._cli.top_screen import Screen, table
from slotwise.processes import ProcessSemaphore

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def sample(holders: dict[str, float], waiters: dict[str, float], value: int = 4) -> Sample:
    """Who holds and who waits, by id and since when."""
    return Sample(
        value,
        [Claimant(each, 1, at(since)) for each, since in holders.items()],
        [Claimant(each, 1, at(since)) for each, since in waiters.items()],
    )


def look(watch: Sampler, now: float, seen: Sample) -> Row:
    [row] = watch.add({Subject("api"): seen}, at(now))
    return row


# ---------------------------------------------------------------- what was seen


def test_a_row_says_that_it_is_closed_paused_or_frozen(shell: Shell):
    titles = {}
    for word, state in {
        "open": {},
        "closed": {"closed": True, "paused_for": 9.0},
        "paused": {"paused_for": 90.0, "frozen": True},
        "frozen": {"frozen": True},
    }.items():
        row = look(Sampler(), 0, Sample(4, (), (), **state))
        [[titles[word], *_]] = table([row], [row], 1.0)
    assert titles == {
        "open": "api",
        "closed": "api (closed)",
        "paused": "api (paused for 90 s)",
        "frozen": "api (frozen)",
    }
    limit = ProcessSemaphore(2, name="api", directory=shell.folder / "slots")
    with limit.cm():
        limit.pause_sync(3600)
        [row] = shell.json("top")
        assert 3500 < row["paused_for_seconds"] <= 3600
        limit.close_everywhere_sync()
        [row] = shell.json("top")
        assert row["closed"] is True


def test_a_wait_is_from_the_first_ask_to_the_grant_however_late_we_look():
    watch = Sampler()
    look(watch, 0, sample({"a": -5}, {"b": -3}))
    row = look(watch, 10, sample({"b": 4}, {}))
    assert (row.wait_p50_seconds, row.wait_p95_seconds) == (7.0, 7.0)
    assert row.acquisitions_per_second == pytest.approx(0.1)


def test_what_is_older_than_the_window_is_forgotten():
    watch = Sampler()
    look(watch, 0, sample({}, {}))
    look(watch, 1, sample({"a": 1}, {}))
    row = look(watch, 2 + WINDOW, sample({"a": 1}, {}))
    assert (row.acquisitions_per_second, row.wait_p50_seconds) == (0.0, None)


# ------------------------------------------------------------ without a terminal


def test_without_a_terminal_it_prints_once(any_shell: Shell):
    any_shell.occupy(limit=2)
    ran = any_shell.here("top", "--every", 0.1)
    head, row = ran.stdout.splitlines()
    assert head.split("  ")[0] == "NAME"
    assert row.split()[:4] == ["api", "2", "1", "0"]
    [shown] = any_shell.json("top", "--every", 0.1)
    assert shown.pop("oldest_hold_seconds") > 0
    assert shown == {
        "name": "api",
        "closed": False,
        "paused_for_seconds": 0.0,
        "frozen": False,
        "value": 2,
        "held": 1,
        "waiting": 0,
        "acquisitions_per_second": 0.0,
        "wait_p50_seconds": None,
        "wait_p95_seconds": None,
    }


# ------------------------------------------------------------------ in a terminal


def rows(terminal: pexpect.spawn, *names: str) -> None:
    """Wait until the table shows these, in this order."""
    # A row may begin with a colour, which ends with an m.
    terminal.expect(r"[\s\S]*?".join(rf"(?:\b|m){name}\b" for name in names))


def test_it_shows_what_happens_sorts_by_keys_and_q_quits(shell: Shell):
    shell.occupy("alpha", limit=9)
    shell.occupy("beta", slots=3, limit=3)
    terminal = shell.terminal("top", "--every", "0.2")
    rows(terminal, "alpha", "beta")
    terminal.send("h")  # held: the largest first
    terminal.expect_exact("held ▼")
    rows(terminal, "beta", "alpha")
    terminal.send("h")
    terminal.expect_exact("held ▲")
    rows(terminal, "alpha", "beta")
    terminal.send("v")
    terminal.expect_exact("value ▼")
    rows(terminal, "alpha", "beta")
    shell.occupy("gamma", limit=20)
    rows(terminal, "gamma", "alpha", "beta")
    terminal.send("q")
    assert ended(terminal) == 0
    assert "\x1b[?1049l" in terminal.before  # the screen is as it was


def test_ctrl_c_quits_too_and_the_terminal_is_as_before(shell: Shell):
    terminal = shell.in_terminal(["bash", "--norc", "--noprofile", "-i"])
    terminal.sendline("PS1='pro''mpt> '; stty -a | md5sum")
    terminal.expect(r"([0-9a-f]{32})")
    before = terminal.match[1]
    terminal.sendline(" ".join(command("top", "--every", "0.2")))
    terminal.expect_exact("q quits")
    terminal.sendintr()
    terminal.expect_exact("prompt> ")
    terminal.sendline("echo code $?; stty -a | md5sum")
    terminal.expect_exact("code 130")
    terminal.expect(r"([0-9a-f]{32})")
    assert terminal.match[1] == before


def test_ctrl_z_leaves_the_terminal_to_the_shell_and_fg_comes_back(shell: Shell):
    bash = shell.in_terminal(["bash", "--norc", "--noprofile", "-i"])
    bash.sendline(" ".join(command("top", "--every", "0.2")))
    bash.expect_exact("q quits")
    bash.sendcontrol("z")
    bash.expect_exact("\x1b[?1049l")  # before the shell speaks
    bash.expect_exact("Stopped")
    bash.sendline("fg")
    bash.expect_exact("\x1b[?1049h")
    bash.expect_exact("q quits")
    bash.send("q")
    bash.expect_exact("\x1b[?1049l")
    bash.sendline("echo code $?")
    bash.expect_exact("code 0")


def test_a_server_that_goes_away_is_told_and_waited_for(tmp_path):
    with Server(tmp_path / "redis") as server:
        shell = Shell(server.url, tmp_path)
        try:
            terminal = shell.terminal("top", "--every", "0.2")
            terminal.expect_exact("q quits")
            server.kill()
            terminal.expect_exact("trying again")
            server.start()
            terminal.expect_exact("q quits")
            terminal.send("q")
            assert ended(terminal) == 0
        finally:
            shell.clean_up()


def test_enter_shows_who_holds_and_waits_and_k_kicks_after_asking(most_shells: Shell):
    most_shells.occupy("api", label="export")
    waiter = most_shells.start("run", "api", "--limit", 1, "--label", "next", "--", "sleep", "600")
    most_shells.until_waiting(1)
    terminal = most_shells.terminal("top", "--every", "0.2")
    rows(terminal, "api")
    terminal.send("\r")
    rows(terminal, "holds", "export", "next")
    terminal.send("k")
    terminal.expect_exact("y/n")
    assert [each.label for each in most_shells.holders()] == ["export"]
    terminal.send("y")
    terminal.expect_exact("kicked pid")
    until(lambda: [each.label for each in most_shells.holders()] == ["next"], "the next holder")
    terminal.send("\x1b")
    terminal.send("r5\ry")
    terminal.expect_exact("has 5 slots now")
    terminal.send("q")
    assert ended(terminal) == 0
    waiter.terminate()


def test_r_resizes_the_tier_of_its_row_and_not_a_semaphore_of_that_name(shell: Shell):
    same = ProcessSemaphore(4, name="api", directory=shell.folder / "slots")
    tiers = Tiers(Tier("user", 2, keyed=True), Tier("all", 5), name="api", url=shell.url)

    def values() -> tuple[int, int, int]:
        stats = tiers.stats_sync()
        return same.stats_sync().max_slots, stats["user"].keys["ann"].value, stats["all"].value

    with same.cm(), tiers.at(user="ann").cm():
        screen = Screen(Watcher(open_backend(shell.url)), 1.0)
        screen.look()
        for key in ("down", "enter", "r", "9", "enter", "y"):  # api, api all, api user=ann
            screen.press(key)
        assert values() == (4, 2, 9)
        for key in ("escape", "down", "r", "7", "enter", "y"):
            screen.press(key)
        assert values() == (4, 7, 9)
        for key in ("up", "up", "enter", "r", "6", "enter", "y"):
            screen.press(key)
        assert values() == (6, 7, 9)


def test_k_kicks_no_holder_of_tiers_that_have_the_name_of_an_opened_semaphore(shell: Shell):
    same = ProcessSemaphore(4, name="api", directory=shell.folder / "slots")
    tiers = Tiers(Tier("all", 5), name="api", url=shell.url)
    with tiers.cm():
        screen = Screen(Watcher(open_backend(shell.url)), 1.0)
        with same.cm():
            screen.look()
            screen.press("enter")
        assert shell.here("forget", "api").returncode == 0
        screen.look()
        for key in ("k", "y"):
            screen.press(key)
        assert tiers.stats_sync()["all"].active == 1


def test_a_kill_leaves_the_terminal_as_it_was(shell: Shell):
    terminal = shell.terminal("top", "--every", "0.2")
    terminal.expect_exact("q quits")
    terminal.kill(signal.SIGTERM)
    assert ended(terminal) == 128 + signal.SIGTERM
    assert "\x1b[?1049l" in terminal.before


def test_an_opened_one_shows_ttls_and_why_an_adaptive_value_moved(shell: Shell):
    folder = shell.url.removeprefix("process://")
    crawler = ProcessSemaphore(Adaptive(4, min=1, max=9), name="crawler", directory=folder, ttl=900)
    held = crawler.acquire_sync(label="page")
    terminal = shell.terminal("top", "--every", "0.2")
    rows(terminal, "crawler")
    terminal.send("\r")
    for shown in ("holds #1", "page", "no change yet"):
        terminal.expect_exact(shown)
    crawler.freeze_sync(7)
    terminal.expect_exact("14 min")  # what is left of its ttl
    terminal.expect(r"4 → 7.*frozen")
    terminal.send("t")
    terminal.expect_exact("Thaw the value of 'crawler'? y/n")
    terminal.send("y")
    terminal.expect_exact("moves again, from 7 slots")
    terminal.send("q")
    assert ended(terminal) == 0
    crawler.release_sync(held)
