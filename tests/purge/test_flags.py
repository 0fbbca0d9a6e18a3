"""The flags of the purger that are typed: ages, deadlines, and those of AsyncEFSPurge."""

from __future__ import annotations

import json

import pytest

from slotwise._cli.main import main as command_line
from slotwise._cli.purge_flags import UNNECESSARY, make_parser
from slotwise.purge import purge
from slotwise.purge._report import PurgeReport


def days(*words: str) -> float:
    return make_parser().parse(["p", *words]).max_age_days


def test_an_age_has_a_unit_or_is_a_number_of_days(monkeypatch) -> None:
    assert days() == 30
    assert days("--max-age", "12h") == 0.5
    assert days("--max-age", "30d") == days("--max-age-days", "30") == 30
    assert days("--max-age", "0") == 0
    monkeypatch.setenv("SLOTWISE_PURGE_MAX_AGE", "36h")
    assert days() == 1.5
    assert days("--max-age-days", "7") == 7  # what is typed wins
    assert days("--max-age", "2d") == 2


@pytest.mark.parametrize("words", ["30", "30.", "soon", "-1d", "inf", "", "1.5"])
def test_an_age_without_a_unit_deletes_nothing(root, old, capsys, words) -> None:
    path = old(root / "x")
    assert command_line(["purge", str(root), "--yes", f"--max-age={words}"]) == 2
    said = capsys.readouterr().err
    assert "--max-age must be a time with its unit, such as 90m, 12h or 30d" in said
    assert said.count("\n") == 1  # and not the usage
    assert path.exists()


def test_two_ages_are_refused_typed_or_in_the_environment(root, old, capsys, monkeypatch) -> None:
    path = old(root / "x")
    assert command_line(["purge", str(root), "--yes", "--max-age=1d", "--max-age-days=1"]) == 2
    monkeypatch.setenv("SLOTWISE_PURGE_MAX_AGE", "1d")
    monkeypatch.setenv("SLOTWISE_PURGE_MAX_AGE_DAYS", "1")
    assert command_line(["purge", str(root), "--yes"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "--max-age-days is not allowed with argument --max-age" in first
    assert "SLOTWISE_PURGE_MAX_AGE and SLOTWISE_PURGE_MAX_AGE_DAYS are both set" in second
    assert path.exists()


def test_command_lines_of_asyncefspurge_work(root, old, capsys) -> None:
    path = old(root / "x")
    words = [
        str(root), "--yes", "--max-age-days", "30", "--max-concurrency", "1000",
        "--task-batch-size", "5000", "--max-concurrent-subdirs", "100", "--log-level", "INFO",
        "--memory-limit-mb", "0", "--json",
    ]  # fmt: skip
    assert command_line(["purge", *words]) == 0
    assert not path.exists()
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert len(lines) == len(UNNECESSARY) == 3
    for flag, line in zip(UNNECESSARY, lines, strict=True):
        assert line.startswith(f"slotwise purge: {flag} is unnecessary")
    assert json.loads(out.splitlines()[-1])["files_purged"] == 1


@pytest.mark.parametrize("level", ["INFO", "Critical", "warning"])
def test_a_log_level_is_taken_in_any_case(level) -> None:
    assert make_parser().parse(["p", "--log-level", level]).log_level == level.lower()


def test_the_version_needs_no_path(capsys) -> None:
    from slotwise import __version__

    assert command_line(["purge", "--version"]) == 0
    assert capsys.readouterr().out == f"slotwise {__version__}\n"


def test_a_deadline_ends_it_cleanly_and_is_not_an_error(root, old, capsys) -> None:
    for number in range(50):
        old(root / f"{number}")
    words = ["--yes", "--json", "--max-delete-per-second", "1", "--deadline", "100ms"]
    assert command_line(["purge", str(root), *words]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["event"], said["stopped_by"]) == ("summary", "deadline")
    assert said["files_purged"] == 50 - len(list(root.iterdir())) < 50


def test_a_deadline_that_is_not_reached_says_nothing(root, old) -> None:
    old(root / "x")
    report = purge(root, deadline=3600)
    assert (report.files_purged, report.stopped_by) == (1, None)
    with pytest.raises(ValueError, match="deadline must be finite and above 0"):
        purge(root, deadline=0)


def test_a_deadline_does_not_hide_errors() -> None:
    assert PurgeReport(stopped_by="deadline").exit_code == 0
    assert PurgeReport(stopped_by="deadline", errors={"EIO": 1}).exit_code == 1
