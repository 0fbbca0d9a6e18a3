"""``slotwise ls`` and ``show``: tables for people, JSON for programs, names that are wrong."""

from __future__ import annotations

import os
import subprocess
from datetime import datetime

import pytest
from rich.cells import cell_len
from tests.cli._shell import Shell, command

from slotwise import ProcessSemaphore, Tier, Tiers, semaphore
from slotwise.processes import _inspect


def test_ls_lists_name_value_held_and_waiting(most_shells: Shell):
    most_shells.occupy("api", limit=2)
    most_shells.occupy("backup")
    most_shells.start("run", "backup", "--limit", 1, "--", "true")
    most_shells.until_waiting(1, "backup")
    open_ = {"closed": False, "reason": None, "paused_for": 0.0, "frozen": False}
    assert most_shells.json("ls") == [
        {"name": "api", "value": 2, "held": 1, "waiting": 0, **open_},
        {"name": "backup", "value": 1, "held": 1, "waiting": 1, **open_},
    ]
    assert most_shells.here("ls").stdout.splitlines() == [
        "NAME    VALUE  HELD  WAITING",
        "api         2     1        0",
        "backup      1     1        1",
    ]


def test_a_semaphore_that_a_stopped_process_has_locked_hides_no_other(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_inspect, "_STUCK", 0.2)
    shell.occupy("api")
    shell.occupy("backup")
    with shell.stopped_amid_a_change("api") as pid:
        listed, shown = shell.here("ls"), shell.here("show", "api")
        counted = ProcessSemaphore.get_acquired_stats_sync(directory=shell.folder / "slots")
    locked = (
        f"'api' is locked by process {pid}, which is stopped: continue it with `kill -CONT {pid}`"
    )
    assert listed.stdout.splitlines()[1:] == ["backup      1     1        0"]
    assert (listed.returncode, locked in listed.stderr) == (1, True)
    assert (shown.returncode, locked in shown.stderr) == (1, True)
    assert [*counted] == ["backup"]


def test_nothing_is_listed_where_nothing_is(any_shell: Shell):
    assert any_shell.json("ls") == []
    ran = any_shell.here("ls")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "NAME  VALUE  HELD  WAITING\n", "")


def test_show_tells_who_holds_and_who_waits(any_shell: Shell):
    holder = any_shell.hold("api", "--label", "night\tshift", "--slots", 2, limit=2)
    waiter = any_shell.start("run", "api", "--limit", 2, "--", "true")
    any_shell.until_waiting(1)
    found = any_shell.json("show", "api")
    facts = ["name", "value", "closed", "reason", "paused_for", "frozen"]
    assert [*found] == [*facts, "holders", "waiters"]
    assert (found["name"], found["value"]) == ("api", 2)
    [held], [waits] = found["holders"], found["waiters"]
    columns = ["id", "since", "host", "pid", "label", "slots", "slot_number", "unreadable"]
    assert [*held] == columns
    assert (held["pid"], held["label"], held["slots"]) == (holder.pid, "night\tshift", 2)
    assert (waits["pid"], waits["label"], waits["slot_number"]) == (waiter.pid, None, None)
    assert datetime.fromisoformat(held["since"]) < datetime.fromisoformat(waits["since"])
    head, titles, first, second = any_shell.here("show", "api").stdout.splitlines()
    assert head == "api: 2 of 2 slots held, 1 waiting"
    assert titles.split() == ["STATE", "FOR", "SLOTS", "HOST", "PID", "LABEL", "ID"]
    assert first.startswith("holds")
    assert r"night\tshift" in first  # nothing that a terminal would obey
    assert second.startswith("waits")
    assert second.endswith(waits["id"])


def test_a_name_that_nobody_uses_suggests_near_ones(any_shell: Shell):
    any_shell.occupy("backup")
    for words in (["show"], ["resize", "2"], ["pause", "1"], ["open"]):
        ran = any_shell.here(words[0], "bakcup", *words[1:])
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr.startswith(f"slotwise {words[0]}: there is no semaphore 'bakcup' ")
        assert ran.stderr.endswith("; did you mean 'backup'?\n")
        assert ran.stderr.count("\n") == 1


def test_an_empty_name_is_nobodys(any_shell: Shell):
    for words in (["show"], ["explain"], ["resize", "2"], ["pause", "1"], ["close", "--yes"]):
        ran = any_shell.here(words[0], "", *words[1:])
        assert (ran.returncode, ran.stdout) == (1, ""), words
        assert ran.stderr.startswith(f"slotwise {words[0]}: there is no semaphore '' "), ran.stderr


@pytest.mark.parametrize("kind", ["semaphore", "tiers"])
def test_what_is_not_a_file_hides_no_other_and_is_named(shell: Shell, kind: str):
    url = f"process://{shell.folder}/slots"
    if kind == "semaphore":
        semaphore("api", 1, url=url).acquire_sync()
    else:
        Tiers(Tier("all", 1), name="api", url=url).acquire_sync()
    shell.occupy("backup")
    [replaced] = shell.folder.glob("slots/api*")
    replaced.unlink()
    os.mkfifo(replaced)
    ran = shell.here("ls")
    assert ran.returncode == 1
    assert ran.stdout.splitlines()[1:] == ["backup      1     1        0"]
    assert f"{replaced}: not a file of slotwise: remove it" in ran.stderr
    ran = shell.here("doctor")
    assert ran.returncode == 1
    assert str(replaced) in ran.stdout
    # Holders of others are found all the same.
    acquisition_id = shell.here("show", "backup").stdout.split()[-1]
    assert shell.here("kick", acquisition_id, "--yes").returncode == 0
    ran = shell.here("kick", "nobody", "--yes")
    assert (ran.returncode, str(replaced) in ran.stderr) == (1, True)


def test_a_reader_that_goes_away_is_no_error(shell: Shell):
    shell.occupy()
    for words, code in ((("ls", "--json"), 141), (("--help",), 141), (("run", "--help"), 141)):
        slotwise = subprocess.Popen(
            command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**shell.environment, "PYTHONUNBUFFERED": ""},
        )  # fmt: skip
        assert slotwise.stdout is not None
        slotwise.stdout.close()  # as `| true` does
        assert slotwise.stderr is not None
        assert slotwise.stderr.read() == b""
        slotwise.stderr.close()
        assert slotwise.wait(30) == code
    piped = f"{' '.join(command('ls'))} | head -1"
    ran = subprocess.run(
        ["bash", "-c", piped], capture_output=True, text=True, env=shell.environment, check=True
    )
    assert (ran.stdout, ran.stderr) == ("NAME  VALUE  HELD  WAITING\n", "")


def test_where_a_table_does_not_fit_nothing_is_cut_off(shell: Shell):
    shell.occupy(label="one that says a lot about itself")
    [held] = shell.holders()
    terminal = shell.in_terminal(command("show", "api"), columns=40)
    terminal.expect_exact("LABEL")
    terminal.expect_exact(f"one that says a lot about itself  {held.acquisition_id}\r\n")


def test_url_after_the_command_wins_over_the_environment(shell: Shell, tmp_path):
    shell.occupy()
    assert shell.json("ls", "--url", f"process://{tmp_path}/elsewhere") == []
    assert len(shell.json("ls")) == 1
    assert not (tmp_path / "elsewhere").exists()  # looking makes nothing


def test_wide_and_combined_letters_keep_the_columns_straight(shell: Shell):
    names = ("abc", "数据库备份", "e\u0301te\u0301", "\U0001f680")
    for name in names:
        shell.occupy(name)
    head, *rows = shell.here("ls").stdout.splitlines()
    assert len(rows) == len(names)
    for line in rows:
        name = next(name for name in names if line.startswith(name))
        before = line[: line.index("1")]
        assert cell_len(before) == head.index("VALUE") + len("VALUE") - 1, name


def test_ls_used_lists_those_that_are_held_or_waited_for(any_shell: Shell):
    any_shell.occupy("held")
    any_shell.occupy("idle")()
    assert any_shell.here("close", "idle", "--yes").returncode == 0  # Redis lists it for that
    assert [each["name"] for each in any_shell.json("ls")] == ["held", "idle"]
    assert [each["name"] for each in any_shell.json("ls", "--used")] == ["held"]


# ----------------------------------------------------------------------- explain


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
