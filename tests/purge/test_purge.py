"""What goes and what stays, and what the report says about it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from pathlib import Path

import pytest

from slotwise.purge import AsyncEFSPurger, AuditRefused, PurgeOptions, Run, _files, make_plan, purge

DAY = 86_400


def aged(path: Path, days: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    when = time.time() - days * DAY
    os.utime(path, (when, when))
    return path


def test_old_files_go_and_new_ones_stay(root, old, new, left) -> None:
    old(root / "a" / "old", size=10)
    old(root / "old")
    new(root / "a" / "new")
    report = purge(root)
    assert left(root) == {"a", "a/new"}
    assert (report.files_scanned, report.files_to_purge, report.files_purged) == (3, 2, 2)
    assert (report.bytes_freed, report.dirs_scanned, report.exit_code) == (10, 2, 0)
    assert report.stopped_by is None


async def test_the_documented_class_does_the_same(root, old, left) -> None:
    old(root / "a" / "old")
    report = await AsyncEFSPurger(root, max_age_days=1, remove_empty_dirs=True).purge()
    assert left(root) == set()
    assert (report.files_purged, report.empty_dirs_deleted) == (1, 1)


def test_the_age_is_strict_and_its_cut_off_is_fixed_at_the_start(root, left) -> None:
    for days in (29.9, 30.1):
        aged(root / f"{days}", days)
    plan = make_plan(root, PurgeOptions())
    exact = root / "exact"
    exact.touch()
    os.utime(exact, ns=(plan.cutoff_ns, plan.cutoff_ns))
    just = root / "just"
    just.touch()
    os.utime(just, ns=(plan.cutoff_ns - 1, plan.cutoff_ns - 1))
    try:
        Run(plan).run()
    finally:
        plan.close()
    assert left(root) == {"29.9", "exact"}


def test_the_age_can_be_of_any_time(root, left) -> None:
    for name, times in {"read": (1, time.time()), "written": (time.time(), 1)}.items():
        (root / name).touch()
        os.utime(root / name, times)
    purge(root, age_by="ctime")
    assert left(root) == {"read", "written"}  # a ctime can't be set
    purge(root, age_by="atime")
    assert left(root) == {"written"}
    purge(root, age_by="mtime")
    assert left(root) == set()


@pytest.mark.parametrize("workers", [1, 16])
@pytest.mark.parametrize("cap", [1, 7, 20, 0])
def test_the_cap_of_directories_is_exact(
    root, left, cap: int, workers: int, monkeypatch, workers_of
) -> None:
    for a in range(5):
        for b in range(5):
            (root / f"{a}" / f"{b}").mkdir(parents=True)
    workers_of(workers)
    take_longer(monkeypatch)
    report = purge(
        root,
        remove_empty_dirs=True,
        max_empty_dirs_to_delete=cap,
        max_concurrency_scanning=workers,
        max_concurrency_deletion=workers,
    )
    assert report.empty_dirs_deleted == (cap or 30)
    assert len(left(root)) == 30 - (cap or 30)
    assert report.stopped_by == ("max_empty_dirs_to_delete" if cap else None)
    assert report.exit_code == 0


def take_longer(monkeypatch) -> None:
    """Removals that several workers are in at once."""

    def slowed(real):
        def call(*args, **more):
            time.sleep(0.001)
            return real(*args, **more)

        return call

    monkeypatch.setattr(os, "unlink", slowed(os.unlink))
    monkeypatch.setattr(os, "rmdir", slowed(os.rmdir))


@pytest.mark.parametrize("workers", [1, 16])
@pytest.mark.parametrize("cap", [1, 7, 100])
def test_the_cap_of_files_is_exact(
    root, old, left, cap: int, workers: int, monkeypatch, workers_of
) -> None:
    for number in range(100):
        old(root / f"{number % 10}" / f"{number}")
    workers_of(workers)
    take_longer(monkeypatch)
    report = purge(
        root,
        max_files_to_delete=cap,
        max_concurrency_scanning=workers,
        max_concurrency_deletion=workers,
    )
    assert report.files_purged == cap
    assert len([name for name in left(root) if "/" in name]) == 100 - cap
    assert (report.stopped_by, report.exit_code) == ("max_files_to_delete", 0)


@pytest.mark.parametrize(
    ("flags", "stays"),
    [
        ({"include": ["*.log"]}, {"a/b/c.txt", "keep/x.txt"}),
        ({"exclude": ["*.log"]}, {"a/b/c.log", "keep/x.log"}),
        ({"exclude": ["keep"]}, {"keep/x.log", "keep/x.txt"}),
        ({"exclude": ["keep/"]}, {"keep/x.log", "keep/x.txt"}),
        ({"exclude": ["a/b"]}, {"a/b/c.log", "a/b/c.txt"}),
        ({"exclude": ["b/*"]}, set()),
        ({"exclude": ["**/b/*.log"]}, {"a/b/c.log"}),
        ({"include": ["a/*"]}, {"a/b/c.log", "a/b/c.txt", "keep/x.log", "keep/x.txt"}),
        ({"include": ["a/**"]}, {"keep/x.log", "keep/x.txt"}),
        ({"include": ["[!c].*"]}, {"a/b/c.log", "a/b/c.txt"}),
        ({"include": ["?.log"], "exclude": ["c.log"]}, {"a/b/c.log", "a/b/c.txt", "keep/x.txt"}),
    ],
)
def test_globs_choose(root, old, flags, stays) -> None:
    for name in ("a/b/c.log", "a/b/c.txt", "keep/x.log", "keep/x.txt"):
        old(root / name)
    report = purge(root, remove_empty_dirs=True, **flags)
    found = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
    assert found == stays
    directories = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_dir()}
    assert directories == {
        parent for name in stays for parent in _parents(name)
    }  # what is left is content, excluded directories too
    assert report.exit_code == 0


def _parents(name: str) -> list[str]:
    return [str(parent) for parent in Path(name).parents if str(parent) != "."]


def test_symlinks_and_special_files_are_left_and_counted(root, outside, old, left) -> None:
    old(root / "a" / "old")
    (root / "a" / "to-file").symlink_to(outside / "precious")
    (root / "b" / "c").mkdir(parents=True)
    (root / "b" / "to-dir").symlink_to(outside)
    (root / "b" / "broken").symlink_to("nowhere")
    os.mkfifo(root / "fifo")
    os.utime(root / "fifo", (1, 1))
    listening = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(root)  # the names of sockets are short
    try:
        listening.bind("socket")
    finally:
        os.chdir(here)
        listening.close()
    report = purge(root, remove_empty_dirs=True, max_age_days=0)
    assert left(root) == {"a", "a/to-file", "b", "b/to-dir", "b/broken", "fifo", "socket"}
    assert (report.symlinks_skipped, report.special_files_skipped) == (3, 2)
    assert (outside / "precious").exists()


def test_only_the_last_link_frees_bytes(root, outside, old) -> None:
    old(root / "single", size=100)
    old(root / "double", size=1000)
    os.link(root / "double", outside / "second")
    report = purge(root)
    assert (report.files_purged, report.bytes_freed) == (2, 100)


def test_names_with_newlines_and_bytes_that_are_no_utf8(root, outside) -> None:
    names = [
        b"new\nline",
        b"\xff\xfe",
        b"tab\t",
        b"'quote\"",
        b" ",
        "Ünï".encode(),
        b"-rf",
        b"\x1b[31m",
    ]
    base = os.fsencode(root)
    for name in names:
        os.mkdir(base + b"/d" + name)  # noqa: PTH102  # these are bytes
        for path in (base + b"/" + name, base + b"/d" + name + b"/" + name):
            os.close(os.open(path, os.O_CREAT))
            os.utime(path, (1, 1))
    audit = outside / "audit"
    report = purge(root, remove_empty_dirs=True, audit=audit)
    assert not any(root.iterdir())
    assert report.files_purged == 2 * len(names)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert len(lines) == 3 * len(names)
    said = {os.fsencode(line["path"]) for line in lines if line["op"] == "unlink"}
    assert said >= {base + b"/" + name for name in names}


def test_files_that_vanish_are_no_error(root, old, monkeypatch) -> None:
    paths = [old(root / f"{number}") for number in range(10)]
    unlink = os.unlink
    for function in ("unlink", "stat"):
        real = getattr(os, function)

        def and_gone(name, *args, real=real, **more):
            if name == "5":
                monkeypatch.undo()
                unlink(paths[5])
            return real(name, *args, **more)

        monkeypatch.setattr(os, function, and_gone)
    report = purge(root, max_delete_per_second=1e6)
    assert report.errors == {}
    assert report.files_purged == 9
    assert not any(root.iterdir())


def test_a_file_that_is_touched_during_the_wait_for_its_turn_stays(root, old, monkeypatch) -> None:
    for number in range(3):
        old(root / f"{number}")
    # However short the wait is: an age that was read before it does not count.
    monkeypatch.setattr(_files, "FRESH", 60.0)
    monkeypatch.setattr(_files, "_STILL_FRESH", 60.0)
    plan = make_plan(root, PurgeOptions(max_delete_per_second=1000))
    try:
        run = Run(plan)
        assert run.pace is not None

        def touch_all_while_waiting() -> bool:
            for path in root.iterdir():
                path.touch()
            return True  # as `Pace.wait` does after any wait

        run.pace.wait = touch_all_while_waiting  # type: ignore[method-assign]
        report = run.run()
    finally:
        plan.close()
    assert (report.files_purged, report.files_to_purge) == (0, 0)
    assert len(list(root.iterdir())) == 3


@pytest.mark.soak
def test_deletions_keep_their_pace(root, old) -> None:
    for number in range(12):
        old(root / f"{number}" / "x")
    report = purge(root, max_delete_per_second=100)
    assert report.files_purged == 12
    assert report.duration_seconds >= 0.11


def test_a_directory_that_gets_a_new_file_in_the_meantime_survives(root, old, monkeypatch) -> None:
    old(root / "a" / "old")
    rmdir = os.rmdir

    def filled_before(name, **more):
        (root / "a" / "new").touch()
        return rmdir(name, **more)

    monkeypatch.setattr(os, "rmdir", filled_before)
    report = purge(root, remove_empty_dirs=True)
    assert (root / "a" / "new").exists()
    assert (report.empty_dirs_deleted, report.errors) == (0, {})


# ----------------------------------------------------------------------- audit


def test_each_deletion_is_told_before_it_is_done(root, outside, old, monkeypatch) -> None:
    old(root / "a" / "b", size=7)
    audit = outside / "audit.jsonl"
    audit.write_text('{"from": "an earlier run"}\n')
    seen = []
    unlink = os.unlink

    def look_first(name, **more):
        seen.append(audit.read_text().splitlines()[-1])
        return unlink(name, **more)

    monkeypatch.setattr(os, "unlink", look_first)
    purge(root, remove_empty_dirs=True, audit=audit)
    first, second, third = [json.loads(line) for line in audit.read_text().splitlines()]
    assert first == {"from": "an earlier run"}
    assert {k: v for k, v in second.items() if k != "time"} == {
        "op": "unlink",
        "path": str(root / "a" / "b"),
        "size": 7,
    }
    assert abs(second["time"] - time.time()) < 60
    assert (third["op"], third["path"]) == ("rmdir", str(root / "a"))
    assert seen == [json.dumps(second)]


def test_a_deletion_that_fails_is_taken_back_in_the_audit(root, outside, old, monkeypatch) -> None:
    old(root / "a")

    def refuse(name, **more):
        raise PermissionError(13, "no")

    monkeypatch.setattr(os, "unlink", refuse)
    report = purge(root, audit=outside / "audit")
    audited = [json.loads(line) for line in (outside / "audit").read_text().splitlines()]
    assert [line["op"] for line in audited] == ["unlink", "failed"]
    assert audited[1]["error"] == "EACCES"
    assert report.errors == {"EACCES": 1}
    assert report.exit_code == 1
    assert report.error_samples[0]["path"] == str(root / "a")


def test_nothing_is_deleted_that_could_not_be_told(root, old) -> None:
    for number in range(5):
        old(root / f"{number}")
    report = purge(root, audit="/dev/full")
    assert len(list(root.iterdir())) == 5
    assert report.errors == {"ENOSPC": 1}
    assert (report.stopped_by, report.exit_code) == ("audit", 2)


def test_an_audit_file_below_the_root_is_refused(root, outside, old) -> None:
    old(root / "a" / "x")
    (outside / "link").symlink_to(root / "a")
    for audit in (root / "audit", root / "a" / "audit", outside / "link" / "audit"):
        with pytest.raises(AuditRefused, match="below the root"):
            purge(root, audit=audit)
    (outside / "file-link").symlink_to(root / "audit")
    with pytest.raises(AuditRefused):
        purge(root, audit=outside / "file-link")
    with pytest.raises(AuditRefused):
        purge(root, audit=outside / "nowhere" / "audit")
    assert (root / "a" / "x").exists()


def test_a_dry_run_writes_no_audit(root, outside, old) -> None:
    old(root / "a")
    purge(root, dry_run=True, audit=outside / "audit")
    assert not (outside / "audit").exists()


# ----------------------------------------------------------- stopping, memory


def test_the_circuit_breaker_stops_the_run(root, old, left) -> None:
    for number in range(50):
        old(root / f"{number}" / "x")
    report = purge(root, memory_limit_mb=1)
    assert (report.stopped_by, report.exit_code) == ("memory", 2)
    assert report.peak_memory_mb > 1


async def test_a_cancelled_purge_ends_first(root, old) -> None:
    for number in range(200):
        old(root / f"{number}")
    purging = asyncio.create_task(AsyncEFSPurger(root, max_delete_per_second=10).purge())
    while len(list(root.iterdir())) == 200:
        await asyncio.sleep(0)
    purging.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await purging
    report = caught.value.report
    assert report.stopped_by == "cancelled"
    assert len(list(root.iterdir())) == 200 - report.files_purged > 0
    assert purge(root).files_purged == 200 - report.files_purged


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({"max_age_days": -1}, ValueError),
        ({"max_age_days": float("nan")}, ValueError),
        ({"max_age_days": "30"}, TypeError),
        ({"age_by": "btime"}, ValueError),
        ({"max_concurrency_scanning": 0}, ValueError),
        ({"max_concurrency_deletion": 0}, ValueError),
        ({"memory_limit_mb": -1}, ValueError),
        ({"max_files_to_delete": -1}, ValueError),
        ({"max_delete_per_second": 0}, ValueError),
        ({"include": "*.log"}, TypeError),
        ({"exclude": [""]}, ValueError),
        ({"min_depth": -1}, ValueError),
        ({"dry_run": 1}, TypeError),
        ({"url": "redis://localhost"}, ValueError),
        ({"no_such_flag": 1}, TypeError),
    ],
)
def test_wrong_flags_are_told(root, flags, error) -> None:
    with pytest.raises(error):
        AsyncEFSPurger(root, **flags)


def test_a_semaphore_of_this_process_can_be_the_limit(root, old, workers_of) -> None:
    from slotwise import MemorySemaphore

    shared = MemorySemaphore(value=2)
    others = shared.acquire_sync(1)
    for number in range(60):
        old(root / f"{number}" / "x")
    workers_of(16)
    report = purge(root, semaphore=shared, remove_empty_dirs=True)
    assert (report.files_purged, report.empty_dirs_deleted) == (60, 60)
    shared.release_sync(others)
    assert shared.stats_sync().acquired_slots == 0


def test_a_closed_semaphore_deletes_nothing(root, old) -> None:
    from slotwise import MemorySemaphore

    shared = MemorySemaphore(value=2)
    shared.close_sync()
    for number in range(3):
        old(root / f"{number}" / "x")
    report = purge(root, semaphore=shared)
    assert (report.files_purged, report.stopped_by, report.exit_code) == (0, "shared_limit", 2)
