"""``slotwise explain``."""

from __future__ import annotations

from tests.cli._shell import Shell


def test_it_explains_a_name_and_an_id_in_a_sentence(any_shell: Shell) -> None:
    any_shell.occupy("api", label="export")
    waiter = any_shell.start("run", "api", "--limit", 1, "--", "true")
    any_shell.until_waiting(1)
    ran = any_shell.here("explain", "api")
    assert ran.returncode == 0
    assert ran.stdout.startswith("a newcomer is second in line for 'api'; 1 of 1 held, oldest by ")
    assert "'export' for " in ran.stdout
    [waiting] = any_shell.waiters()
    told = any_shell.json("explain", waiting.acquisition_id)
    assert (told["state"], told["place"]) == ("waiting", 1)
    assert told["lacks"][0]["oldest"]["label"] == "export"
    assert (told["lacks"][0]["paused_for"], told["closed"], told["reason"]) == (0.0, False, None)
    assert told["sentence"].startswith("first in line for 'api'")
    [holder] = any_shell.holders()
    assert any_shell.json("explain", holder.acquisition_id)["state"] == "holding"
    waiter.terminate()


def test_nothing_found_is_one_line_and_exit_1(shell: Shell) -> None:
    ran = shell.here("explain", "nobody")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert len(ran.stderr.splitlines()) == 1
