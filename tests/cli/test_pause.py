"""``slotwise pause``, how ``show`` and ``ls`` tell of it, and how ``open`` ends it."""

from __future__ import annotations

import pytest
from tests.cli._shell import Shell

import slotwise
from slotwise import Tier, Tiers


def test_a_semaphore_is_paused_shown_and_opened(any_shell: Shell) -> None:
    crm = slotwise.semaphore("crm", 3, any_shell.url)
    held = crm.acquire_sync()
    ran = any_shell.here("pause", "crm", "10m")
    assert ran.returncode == 0
    assert ran.stdout.startswith("'crm' is paused for 10 min; 'slotwise open crm")
    assert crm.try_acquire_sync() is None
    [head, *_] = any_shell.here("show", "crm").stdout.splitlines()
    assert head.startswith("crm: 1 of 3 slots held, 0 waiting, paused for ")
    assert 500 < any_shell.json("show", "crm")["paused_for"] <= 600
    assert "paused for" in any_shell.here("ls").stdout
    [listed] = any_shell.json("ls")
    assert 500 < listed["paused_for"] <= 600
    ran = any_shell.here("pause", "crm", 5)  # the longest wins
    assert "'crm' is paused for 9 min" in ran.stdout or "for 10 min" in ran.stdout
    ran = any_shell.here("open", "crm")
    assert (ran.returncode, ran.stdout) == (0, "'crm' is open, and its pause is over\n")
    assert crm.try_acquire_sync() is not None
    crm.release_sync(held)


def test_tiers_are_paused_all_together_or_by_key(any_shell: Shell) -> None:
    tiers = Tiers(Tier("host", 2, keyed=True), Tier("all", 5), name="web", url=any_shell.url)
    held = tiers.acquire_sync(host="a")
    ran = any_shell.here("pause", "web", 60, "--tier", "host", "--key", "slow")
    assert ran.returncode == 0
    assert ran.stdout.startswith("host 'slow' of 'web' is paused for 60 s; ")
    assert tiers.try_acquire_sync(host="slow") is None
    assert tiers.try_acquire_sync(host="b") is not None
    [head, *_] = any_shell.here("show", "web").stdout.splitlines()
    assert ", host 'slow' paused for " in head
    ran = any_shell.here("pause", "web", "1h")
    assert (ran.returncode, "'web' is paused for 60 min" in ran.stdout) == (0, True)
    assert tiers.try_acquire_sync(host="b") is None
    assert any_shell.here("open", "web").stdout == "'web' is open, and its pause is over\n"
    assert tiers.try_acquire_sync(host="slow") is not None
    tiers.release_sync(held)


def test_paused_tiers_are_listed_when_nobody_uses_them(any_shell: Shell) -> None:
    tiers = Tiers(Tier("host", 2, keyed=True), Tier("all", 5), name="web", url=any_shell.url)
    tiers.pause_sync(600, host="slow")
    lines = any_shell.here("ls").stdout.splitlines()
    [slow] = [line for line in lines if "slow" in line]
    assert slow.split()[:3] == ["web", "host", "slow"]
    assert "paused for" in slow
    [wide] = [line for line in lines if line.split()[1:2] == ["all"]]
    assert "paused for" not in wide
    assert any_shell.here("pause", "web", "1h").returncode == 0
    lines = any_shell.here("ls").stdout.splitlines()
    assert ["paused for" in line for line in lines if line.startswith("web")] == [True, True]
    assert "web" not in any_shell.here("ls", "--used").stdout


@pytest.mark.parametrize("wrong", ["0", "-1", "soon", "inf", "1e5d"])
def test_a_time_that_makes_no_sense_pauses_nothing(any_shell: Shell, wrong: str) -> None:
    crm = slotwise.semaphore("crm", 3, any_shell.url)
    with crm.cm():
        ran = any_shell.here("pause", "crm", wrong)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert "None" not in ran.stderr
        assert crm.stats_sync().paused_for == 0


def test_what_is_unknown_is_an_error(any_shell: Shell) -> None:
    tiers = Tiers(Tier("host", 2, keyed=True), Tier("all", 5), name="web", url=any_shell.url)
    with tiers.cm(host="a"):
        assert any_shell.here("pause", "nobody", 1).returncode == 1
        assert any_shell.here("pause", "web", 1, "--tier", "host").returncode == 2
        assert any_shell.here("pause", "web", 1, "--tier", "user").returncode == 1
        assert tiers.try_acquire_sync(host="a") is not None
