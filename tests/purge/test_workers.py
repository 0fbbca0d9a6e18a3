"""How many workers there are, and what they do when descriptors or luck run out."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time

import pytest

from slotwise.purge import (
    PurgeOptions,
    Run,
    _walk,
    _workers,
    make_plan,
    purge,
)
from slotwise.purge._scaling import WorkerScaler


@pytest.mark.soak
def test_one_worker_while_it_is_fast_and_all_within_100_ms_when_it_is_slow() -> None:
    scaler = WorkerScaler(64)
    operations = 0
    for _ in range(50):  # 10 µs an operation
        operations += 1000
        assert scaler.look(0.01, operations, 1, [0.00001]) == 1
    waited = 0.0
    while scaler.wanted < 64:
        operations += 2 * scaler.wanted
        scaler.look(0.01, operations, scaler.wanted, [0.005])
        waited += 0.01
    assert waited <= 0.1
    for _ in range(3):
        operations += 1000
        scaler.look(0.01, operations, 64, [0.00001] * 64)
    assert scaler.wanted == 1


@pytest.mark.soak
def test_a_crowd_that_only_fights_for_the_processor_goes_home() -> None:
    scaler = WorkerScaler(100)
    operations = 0
    while scaler.wanted < 100:
        operations += 2 * scaler.wanted
        scaler.look(0.01, operations, scaler.wanted, [0.005], cpu=0.001)
    looks = 0
    while scaler.wanted > 1:  # a fast disk: the processor is busy, and each one waits for it
        looks += 1
        operations += 200
        scaler.look(0.01, operations, scaler.wanted, [0.005], cpu=0.01)
    assert looks <= 10


def test_a_directory_that_is_listed_again_is_one_directory(root, old, monkeypatch) -> None:
    monkeypatch.setattr(_walk, "BATCH", 3)
    for number in range(5):
        old(root / "a" / f"{number}")
    rmdir, late = os.rmdir, []

    def not_yet_empty(name, **more):
        if not late and not any((root / "a").iterdir()):
            late.append(old(root / "a" / "late"))
        return rmdir(name, **more)

    monkeypatch.setattr(os, "rmdir", not_yet_empty)
    report = purge(root, remove_empty_dirs=True)
    assert late
    assert (report.dirs_scanned, report.empty_dirs_deleted) == (2, 1)
    assert (report.files_scanned, report.files_purged) == (6, 6)


@pytest.mark.parametrize("name", ["open", "scandir", "dup"])
def test_no_descriptors_left_is_a_reason_to_wait_and_no_error(root, old, monkeypatch, name) -> None:
    path = root
    for level in range(40):
        path = path / f"{level}"
        old(path / "x")
    real, refusals = getattr(os, name), [errno.EMFILE, errno.ENFILE, errno.EMFILE]

    def refused(*args, **more):
        if refusals and (name != "open" or more.get("dir_fd") is not None):
            number = refusals.pop()
            raise OSError(number, os.strerror(number))
        return real(*args, **more)

    plan = make_plan(root, PurgeOptions(remove_empty_dirs=True))
    try:
        run = Run(plan)
        run.descriptors.most = 4  # so that directories have to be found again
        monkeypatch.setattr(os, name, refused)
        report = run.run()
    finally:
        monkeypatch.undo()
        plan.close()
    assert (report.files_purged, report.empty_dirs_deleted, report.errors) == (40, 40, {})


def test_what_the_stack_had_no_room_for_is_shared_once_it_has(root, old, monkeypatch) -> None:
    for number in range(60):
        old(root / f"{number}" / "x")
    monkeypatch.setattr(_workers, "_SMALLEST_STACK", 4)
    monkeypatch.setattr(_workers, "_STACK_PER_WORKER", 0)
    monkeypatch.setattr(WorkerScaler, "look", lambda *_, **__: 4)
    plan = make_plan(root, PurgeOptions())
    run = Run(plan)
    run.workers.wanted = 4
    scandir, unlink = os.scandir, os.unlink
    lister: list[threading.Thread] = []
    unlinked: list[threading.Thread] = []

    def listening(what):
        if not lister:  # the root comes first
            lister.append(threading.current_thread())
        return scandir(what)

    def unlinking(name, **more):
        deadline = time.monotonic() + 30
        if threading.current_thread() in lister:  # until the others have nothing left to do
            while not (run.workers.may_help and run.workers.busy == 1):
                assert time.monotonic() < deadline
                time.sleep(0.0001)
        unlinked.append(threading.current_thread())
        unlink(name, **more)

    monkeypatch.setattr(os, "scandir", listening)
    monkeypatch.setattr(os, "unlink", unlinking)
    try:
        report = run.run()
    finally:
        monkeypatch.undo()
        plan.close()
    assert report.files_purged == 60
    assert unlinked.count(lister[0]) < 30  # and not all but the first four


@pytest.mark.soak
@pytest.mark.parametrize(
    "purge_it", ["purge(root)", "cli._sample(make_plan(root, PurgeOptions()))"], ids=["api", "plan"]
)
def test_ctrl_c_while_workers_are_hired_ends_it_in_order(root, old, purge_it) -> None:
    old(root / "x")
    program = f"""
import signal, sys, threading
from slotwise._cli import purge as cli
from slotwise.purge import PurgeOptions, make_plan, purge

def interrupted(thread, start=threading.Thread.start):
    if thread.name == "slotwise-purge":
        signal.raise_signal(signal.SIGINT)
    start(thread)

signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread.start = interrupted
root = {str(root)!r}
try:
    {purge_it}
except KeyboardInterrupt:
    workers = [each for each in threading.enumerate() if each.name == "slotwise-purge"]
    sys.exit(1 if workers else 7)
"""
    ran = subprocess.run([sys.executable, "-c", program], timeout=30, check=False)
    assert ran.returncode == 7
