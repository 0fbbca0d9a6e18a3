"""A dry run foresees what the kernel will refuse."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time

import pytest

from slotwise.purge import _identity, purge
from slotwise.purge._scaling import WorkerScaler

NOBODY = 65534


def outcome(report) -> tuple:
    return report.files_purged, report.empty_dirs_deleted, report.bytes_freed, report.errors


@pytest.mark.parametrize("flag", ["i", "a"])
@pytest.mark.parametrize("what", ["file", "directory", "parent"])
def test_immutable_and_append_only_files_and_directories(root, old, flag, what) -> None:
    if shutil.which("chattr") is None:
        pytest.skip("needs chattr")
    old(root / "p" / "d" / "x", size=3)
    old(root / "y", size=5)
    frozen = {"file": root / "p" / "d" / "x", "directory": root / "p" / "d", "parent": root / "p"}
    chattr = ["chattr", f"+{flag}", frozen[what]]
    if subprocess.run(chattr, capture_output=True, check=False).returncode:
        pytest.skip("no such flags on this file system, or for this user")
    try:
        expected = outcome(purge(root, dry_run=True, remove_empty_dirs=True))
        seen = outcome(purge(root, remove_empty_dirs=True))
    finally:
        subprocess.run(["chattr", f"-{flag}", frozen[what]], check=True)
    assert seen == expected
    assert sum(seen[3].values()) == 1


def test_sticky_directories_of_others(tmp_path, root, old) -> None:
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    old(root / "sticky" / "mine", size=3)
    old(root / "sticky" / "theirs", size=5)
    (root / "sticky" / "empty").mkdir()
    os.chown(root / "sticky" / "mine", NOBODY, NOBODY)
    (root / "sticky").chmod(0o1777)
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == 0 and str(path) not in ("/", "/tmp"):
            path.chmod(path.stat().st_mode | 0o755)
    os.seteuid(NOBODY)
    try:
        expected = outcome(purge(root, dry_run=True, remove_empty_dirs=True))
        seen = outcome(purge(root, remove_empty_dirs=True))
    finally:
        os.seteuid(0)
    assert seen == expected == (1, 0, 3, {"EPERM": 2})


def test_a_dry_run_keeps_to_the_limit_of_operations_in_flight(root, old, monkeypatch) -> None:
    for number in range(400):
        old(root / f"{number % 40}" / f"{number}")
    lock = threading.Lock()
    now = most = 0

    def counted(real):
        def call(*args, **more):
            nonlocal now, most
            if threading.current_thread().name != "slotwise-purge":  # another test's sweeper
                return real(*args, **more)
            with lock:
                now += 1
                most = max(most, now)
            try:
                time.sleep(0.0005)
                return real(*args, **more)
            finally:
                with lock:
                    now -= 1

        return call

    for name in ("stat", "access", "scandir"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    monkeypatch.setattr(_identity, "is_frozen", counted(_identity.is_frozen))
    monkeypatch.setattr(WorkerScaler, "look", lambda *_, **__: 20)
    report = purge(root, dry_run=True, remove_empty_dirs=True, max_concurrency_scanning=3)
    monkeypatch.undo()
    assert (report.files_purged, report.empty_dirs_deleted) == (400, 40)
    assert most == 3
