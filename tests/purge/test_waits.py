"""The age is read after every wait: a file that is touched meanwhile stays."""

from __future__ import annotations

import errno
import json
import os
import threading
import time

from slotwise import MemorySemaphore
from slotwise.purge import _files, purge
from slotwise.purge._audit import Audit

LONG = 2 * _files._STILL_FRESH


class FirstUnlink:
    """The first unlink takes until the other file's age was read, and that file touched."""

    def __init__(self, monkeypatch, root, *, error: int | None = None) -> None:
        self._error = error
        self._root = root
        self._lock = threading.Lock()
        self._first = True
        self._read: set[str] = set()
        self._both = threading.Event()
        self.stat, self.unlink = os.stat, os.unlink
        monkeypatch.setattr(os, "stat", self._stat)
        monkeypatch.setattr(os, "unlink", self._unlink)

    def _stat(self, name, **more):
        found = self.stat(name, **more)
        if more.get("dir_fd") is not None:
            with self._lock:
                self._read.add(name)
                if len(self._read) == 2:
                    self._both.set()
        return found

    def _unlink(self, name, **more):
        with self._lock:
            first, self._first = self._first, False
        if first:
            assert self._both.wait(30)
            for path in self._root.glob("*/*"):
                if path.name != name:
                    os.utime(path)
            time.sleep(LONG)
            if self._error is not None:
                raise OSError(self._error, os.strerror(self._error))
        return self.unlink(name, **more)


def test_the_wait_at_the_deletion_gate(root, old, left, monkeypatch) -> None:
    old(root / "1" / "a")
    old(root / "2" / "b")
    FirstUnlink(monkeypatch, root)
    report = purge(root, max_concurrency_scanning=2, max_concurrency_deletion=1)
    assert (report.files_purged, report.files_to_purge, report.errors) == (1, 1, {})
    assert len(left(root)) == 3


def test_the_wait_for_a_reservation_of_the_cap(root, old, left, monkeypatch) -> None:
    old(root / "1" / "a")
    old(root / "2" / "b")
    FirstUnlink(monkeypatch, root, error=errno.EIO)
    report = purge(root, max_files_to_delete=1)
    assert (report.files_purged, report.errors) == (0, {"EIO": 1})
    assert len(left(root)) == 4


def test_the_wait_for_the_disk_of_the_audit(root, outside, old, monkeypatch) -> None:
    path = old(root / "a")
    before = Audit.before

    def slowly(self, *what) -> None:
        before(self, *what)
        path.touch()
        time.sleep(LONG)

    monkeypatch.setattr(Audit, "before", slowly)
    report = purge(root, audit=outside / "audit")
    assert path.exists()
    assert (report.files_purged, report.files_to_purge, report.errors) == (0, 0, {})
    audited = [json.loads(line) for line in (outside / "audit").read_text().splitlines()]
    assert [line["op"] for line in audited] == ["unlink", "failed"]


def test_the_wait_for_a_slot_of_a_shared_limit(root, old) -> None:
    path = old(root / "a")
    shared = MemorySemaphore(value=1)
    others = shared.acquire_sync()
    reports = []
    purging = threading.Thread(target=lambda: reports.append(purge(root, semaphore=shared)))
    purging.start()
    deadline = time.monotonic() + 30
    while not shared.stats_sync().waiting and time.monotonic() < deadline:
        time.sleep(0.001)
    path.touch()
    shared.release_sync(others)
    purging.join(30)
    assert path.exists()
    assert reports[0].files_purged == 0
