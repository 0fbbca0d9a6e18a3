"""``slotwise freeze`` and ``thaw``, and how ``show`` and ``top`` tell what moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.cli._shell import Shell

import slotwise
from slotwise import Adaptive, Errors, Semaphore, Tier, Tiers
from slotwise._admin.snapshot import Sample, Sampler, Subject
from slotwise._cli.top_screen import table

RULES = Adaptive(10, 2, 20, algorithm=Errors())


@pytest.fixture
def backend(any_shell: Shell) -> Semaphore:
    return slotwise.semaphore("backend", RULES, any_shell.url)


def test_a_value_is_frozen_shown_and_thawed(any_shell: Shell, backend: Semaphore) -> None:
    held = backend.acquire_sync()
    backend.release_sync(backend.acquire_sync(), outcome="dropped")
    ran = any_shell.here("freeze", "backend")
    assert (ran.returncode, ran.stdout) == (0, "'backend' stays at 7 slots\n")
    backend.release_sync(backend.acquire_sync(), outcome="dropped")
    assert backend.stats_sync().max_slots == 7
    ran = any_shell.here("freeze", "backend", 12)
    assert (ran.returncode, ran.stdout) == (0, "'backend' stays at 12 slots\n")
    shown = any_shell.here("show", "backend").stdout
    assert shown.splitlines()[0] == "backend: 1 of 12 slots held, 0 waiting, frozen"
    *_, head, first, second = shown.splitlines()
    assert head.split() == ["CHANGED", "FROM", "TO", "BECAUSE"]
    assert first.split()[-6:] == ["10", "7", "a", "call", "was", "dropped"]
    assert second.split()[-3:] == ["7", "12", "frozen"]
    changes = any_shell.json("show", "backend")["changes"]
    assert [(each["old"], each["new"]) for each in changes] == [(10, 7), (7, 12)]
    assert any_shell.json("show", "backend")["frozen"] is True
    [listed] = any_shell.json("ls")
    assert listed["frozen"] is True
    ran = any_shell.here("thaw", "backend")
    assert (ran.returncode, ran.stdout) == (0, "'backend' moves again, from 12 slots\n")
    backend.release_sync(backend.acquire_sync(), outcome="dropped")
    assert backend.stats_sync().max_slots == 8
    backend.release_sync(held)


def test_what_is_wrong_is_said_in_one_line_and_changes_nothing(
    any_shell: Shell, backend: Semaphore
) -> None:
    with backend.cm(), slotwise.semaphore("fixed", 3, any_shell.url).cm():
        for outside in (1, 21):
            for command in ("freeze", "resize"):
                ran = any_shell.here(command, "backend", outside)
                assert ran.returncode == 1
                text = f"an adaptive value must be within 2 and 20, not {outside}"
                assert ran.stderr == f"slotwise {command}: {text}\n"
        for command in ("freeze", "thaw"):
            ran = any_shell.here(command, "fixed")
            assert ran.returncode == 1
            text = "'fixed' has a fixed value: 'slotwise resize' changes it"
            assert ran.stderr == f"slotwise {command}: {text}\n"
            ran = any_shell.here(command, "fixe")
            assert ran.returncode == 1
            assert "did you mean 'fixed'?" in ran.stderr
        ran = any_shell.here("freeze", "backend", "many")
        assert ran.returncode == 2
        assert "changes" not in any_shell.json("show", "fixed")
        assert backend.stats_sync().max_slots == 10


def test_a_command_runs_under_an_adaptive_limit_without_saying_which(
    any_shell: Shell, backend: Semaphore
) -> None:
    with backend.cm():
        ran = any_shell.run("run", "backend", "--limit", 5, "--", "true")
        assert ran.returncode == 125
        rules = "2 to 20 from 10, errors"
        assert (
            ran.stderr == f"slotwise run: 'backend' finds its value ({rules}): leave out --limit\n"
        )
        assert any_shell.run("run", "backend", "--", "true").returncode == 0
        assert backend.stats_sync().max_slots == 10


def test_tiers_are_frozen_by_tier_and_key(any_shell: Shell) -> None:
    shell = any_shell
    tiers = Tiers(
        Tier("tenant", RULES, keyed=True), Tier("all", 50), url=shell.url, name="model-api"
    )
    kept = [tiers.acquire_sync(tenant=name) for name in ("acme", "evil")]
    ran = shell.here("freeze", "model-api", 4, "--tier", "tenant", "--key", "acme")
    assert (ran.returncode, ran.stdout) == (0, "tenant 'acme' of 'model-api' stays at 4 slots\n")
    ran = shell.here("freeze", "model-api")
    assert (ran.returncode, ran.stdout) == (0, "each tenant of 'model-api' stays where it is\n")
    assert "tenant frozen" in shell.here("show", "model-api").stdout.splitlines()[0]
    tiers.release_sync(kept.pop(), outcome="dropped")
    assert {key: each.value for key, each in tiers.stats_sync()["tenant"].keys.items()} == {
        "acme": 4,
        "evil": 10,
    }
    assert shell.here("thaw", "model-api", "--key", "acme").returncode == 0
    tiers.release_sync(tiers.acquire_sync(tenant="acme"), outcome="dropped")
    assert tiers.stats_sync()["tenant"].keys["acme"].value == 2
    shown = shell.here("show", "model-api").stdout.splitlines()
    assert shown[-1].split()[-7:] == ["tenant=acme", "4", "2", "a", "call", "was", "dropped"]
    [*_, last] = shell.json("show", "model-api", "--key", "acme")["changes"]
    assert (last["tier"], last["key"], last["new"]) == ("tenant", "acme", 2)
    ran = shell.here("freeze", "model-api", 21, "--tier", "tenant")
    assert ran.returncode == 1
    assert "must be within 2 and 20, not 21" in ran.stderr
    ran = shell.here("thaw", "model-api", "--key", "nosuch")
    assert ran.returncode == 1
    assert "nobody uses the key 'nosuch' of 'tenant' of 'model-api'" in ran.stderr
    ran = shell.here("thaw", "model-api", "--tier", "all")
    assert ran.returncode == 1
    assert "tier 'all' of 'model-api' has a fixed value" in ran.stderr
    tiers.release_sync(kept.pop())


def test_top_shows_where_a_value_came_from_for_a_minute() -> None:
    sampler, now = Sampler(), datetime(2026, 1, 1, tzinfo=UTC)

    def shown(value: int, seconds: float) -> str:
        samples = {Subject("backend"): Sample(value, (), ())}
        rows = sampler.add(samples, now + timedelta(seconds=seconds))
        return table(rows, rows, 1.0)[0][1]

    assert [shown(20, 0), shown(20, 1), shown(17, 2), shown(17, 30), shown(23, 31)] == [
        *("20", "20", "20→17", "20→17", "17→23")
    ]
    assert shown(23, 92) == "23"
