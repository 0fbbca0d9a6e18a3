"""What is shown while a purge runs: a bar on a terminal, lines of JSON elsewhere."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import threading

import pytest

from slotwise._cli.main import main as command_line
from slotwise._cli.purge_view import bar, counts
from slotwise.purge import PurgeOptions, PurgeReport, Run, make_plan

WORDS = ["--yes", "--max-delete-per-second", "20", "--progress-interval", "100ms"]


def test_without_a_terminal_progress_is_json_and_the_summary_last(root, old, capsys) -> None:
    for number in range(10):
        old(root / f"{number}")
    assert command_line(["purge", str(root), *WORDS, "--json"]) == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    # What threads of other tests log is none of ours.
    start, *progress, summary = [line for line in lines if line["event"] != "log"]
    assert (start["event"], summary["event"], err) == ("start", "summary", "")
    assert progress
    for line in progress:
        assert line["event"] == "progress"
        assert line["files_purged"] <= 10
        assert {"time", "in_flight", "memory_mb", "files_scanned", "bytes_freed"} <= set(line)


def test_without_json_progress_goes_to_stderr_unless_it_is_not_wanted(root, old, capsys) -> None:
    for number in range(8):
        old(root / f"{number}")
    assert command_line(["purge", str(root), *WORDS, "--max-files-to-delete", "5"]) == 0
    out, err = capsys.readouterr()
    assert "files purged" in out
    assert {json.loads(line)["event"] for line in err.splitlines()} == {"progress"}
    assert command_line(["purge", str(root), *WORDS, "--progress-interval", "0"]) == 0
    assert capsys.readouterr().err == ""


HUGE = PurgeReport(
    files_purged=123_456_789,
    files_scanned=1_234_567_890,
    empty_dirs_deleted=1_234_567,
    bytes_freed=10**14,
    errors={"EIO": 12_345},
    files_per_second=123_456,
    duration_seconds=10_000,
)


@pytest.mark.parametrize("room", [40, 56, 100, 200])
def test_the_counts_fit_and_the_most_important_ones_come_first(room) -> None:
    said = counts(HUGE, 1000, 800.0, room)
    assert said.startswith("123,456,789 files · 12,345 errors")
    assert len(said) <= room
    assert (" in flight" in said) == (room >= 56)
    assert (" MB" in said) == (room == 200)


@pytest.mark.parametrize("dry_run", [True, False])
def test_the_bar_fits_into_80_columns(dry_run, root, monkeypatch) -> None:
    pytest.importorskip("rich")
    said = io.StringIO()
    said.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    plan = make_plan(root, PurgeOptions())
    try:
        run = Run(plan)
        with bar(dry_run=dry_run) as show:
            show(HUGE, run)
    finally:
        plan.close()
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.getvalue()))
    assert any("in flight" in line for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_in_flight_counts_operations_and_not_workers(root, old, monkeypatch, workers_of):
    """Of many workers, two are in an operation; the others wait for the gate."""
    for number in range(8):
        old(root / f"{number}" / "x")
    workers_of(8)
    unlink, inside, go_on = os.unlink, threading.Semaphore(0), threading.Event()

    def held(name, **more):
        inside.release()
        assert go_on.wait(30)
        unlink(name, **more)

    monkeypatch.setattr(os, "unlink", held)
    limits = {"max_concurrency_scanning": 8, "max_concurrency_deletion": 2}
    plan = make_plan(root, PurgeOptions(**limits))
    try:
        run = Run(plan)
        thread = threading.Thread(target=run.run)
        thread.start()
        for _ in range(2):
            assert inside.acquire(timeout=30)
        while run.gates.scan.in_flight:  # a few may still read an age
            pass
        in_flight = run.in_flight
        go_on.set()
        thread.join(30)
    finally:
        plan.close()
    assert in_flight == 2
    assert run.in_flight == 0
