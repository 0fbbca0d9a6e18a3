"""How many workers there are, and what they do when descriptors or luck run out."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
import threading
import time
from statistics import median

import pytest

from slotwise.purge import (
    PurgeOptions,
    Run,
    _processor,
    _scaling,
    _walk,
    _workers,
    make_plan,
    purge,
)
from slotwise.purge._files import Files
from slotwise.purge._gates import Gates
from slotwise.purge._processor import ProcessorQueue
from slotwise.purge._scaling import WorkerScaler
from slotwise.purge._tally import Tally


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
def test_a_moment_of_silence_brings_only_a_few_workers() -> None:
    scaler = WorkerScaler(1000)
    scaler.look(0.01, 500, 1, [0.00001])
    for _ in range(8):
        scaler.look(0.01, 500, 1, [])
    assert scaler.wanted == 4
    scaler.look(0.01, 1500, 4, [0.00001])
    scaler.look(0.01, 2500, 4, [0.00001])
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


@pytest.mark.soak
def test_a_worker_that_only_waits_for_the_processor_stays_alone() -> None:
    scaler = WorkerScaler(64)
    operations = 0
    for _ in range(20):  # fast operations, and 10 ms in the queue for the processor
        operations += 4
        assert scaler.look(0.01, operations, 1, [], cpu=0.0001, queued=0.0098) == 1
    for _ in range(20):  # nothing at all is done: it has to wait for a processor
        assert scaler.look(0.01, operations, 1, [], queued=0.01) == 1
    for _ in range(20):  # the same look of it without a queue is a slow file system
        operations += 4
        scaler.look(0.01, operations, 1, [], cpu=0.0001)
    assert scaler.wanted == 64


@pytest.mark.soak
def test_a_thread_that_is_queued_is_told_from_one_that_sleeps(monkeypatch) -> None:
    files = {"schedstat": b"5000 0 1\n", "stat": b"7 (a) b) R 1 1\n"}
    monkeypatch.setattr(_processor, "_read", lambda _thread_id, name: files[name])
    queue = ProcessorQueue()
    assert queue.look(7, 0.01) == 0  # the first look at this thread
    files["schedstat"] = b"6000 8000000 3\n"
    assert queue.look(7, 0.01) == pytest.approx(0.008)
    assert queue.look(7, 0.01) == 0.01  # no timeslice since, and it could run
    files["stat"] = b"7 (a) R) S 1 1\n"
    assert queue.look(7, 0.01) == 0  # no timeslice since, and it sleeps
    assert queue.look(8, 0.01) == 0
    assert queue.look(0, 0.01) == 0
    files["schedstat"] = b"not numbers"
    assert queue.look(8, 0.01) == 0


@pytest.mark.soak
def test_a_thread_of_this_process_is_seen_asleep() -> None:
    queue, asleep = ProcessorQueue(), threading.Event()
    thread = threading.Thread(target=asleep.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        queue.look(thread.native_id, 10.0)
        while queue.look(thread.native_id, 10.0):  # on its way to sleep
            time.sleep(0.001)
    finally:
        asleep.set()
        thread.join()


@pytest.mark.soak
def test_several_workers_time_single_deletions(root, old, monkeypatch) -> None:
    # A mean over the batch would be the time of the one that the processor kept waiting.
    names = [old(root / f"{number}").name for number in range(16)]
    unlink = os.unlink

    def one_slowly(name, **more) -> None:
        if name == names[3]:
            time.sleep(0.2)
        unlink(name, **more)

    plan = make_plan(root, PurgeOptions())
    try:
        run = Run(plan)
        files = Files(run, Tally(), Gates(run.gates))
        run.workers.wanted = 4
        noted: list[float] = []
        monkeypatch.setattr(files, "_note_time", lambda seconds, **_: noted.append(seconds))
        monkeypatch.setattr(os, "unlink", one_slowly)
        files.purge(run.root, names)
    finally:
        plan.close()
    assert not list(root.iterdir())
    assert len(noted) == 16
    assert max(noted) >= 0.2
    assert median(noted) < 0.2 / 16  # 10 µs


@pytest.mark.soak
def test_a_crowd_that_was_needed_comes_back_and_is_left_in_peace() -> None:
    scaler = WorkerScaler(64)
    operations = 0

    def look() -> None:
        """5 ms an operation, of which 0.1 ms keep the processor busy: 50 workers fill it."""
        nonlocal operations
        done = min(100, 2 * scaler.wanted)
        operations += done
        scaler.look(0.01, operations, scaler.wanted, [0.005], cpu=done * 0.000_1)

    while scaler.wanted < 64:
        look()
    wanted = []
    for _ in range(60):
        look()
        wanted.append(scaler.wanted)
    assert min(wanted) >= 16
    assert wanted[-40:] == [wanted[-1]] * 40
    assert wanted[-1] >= 32


def test_directories_without_files_tell_how_long_they_took(root, monkeypatch) -> None:
    for number in range(30):
        (root / f"{number}").mkdir()
        (root / f"{number}" / "link").symlink_to("nowhere")
    audited: list[float] = []
    look = WorkerScaler.look

    def listening(self, seconds, operations, busy, latencies, **more):
        audited.extend(latencies)
        return look(self, seconds, operations, busy, latencies, **more)

    real = os.open

    def slowly(*args, **more):
        if more.get("dir_fd") is not None:
            time.sleep(0.002)
        return real(*args, **more)

    monkeypatch.setattr(WorkerScaler, "look", listening)
    monkeypatch.setattr(os, "open", slowly)
    purge(root)
    assert audited
    assert max(audited) >= 0.001  # opening and listing are two operations


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


@pytest.mark.soak
def test_a_descriptor_that_another_worker_closes_is_not_what_a_parent_is_found_by(
    root, old, monkeypatch
) -> None:
    path = root
    for level in range(12):
        path = path / f"{level}"
        old(path / "x")
    plan = make_plan(root, PurgeOptions(remove_empty_dirs=True))
    run = Run(plan)
    run.descriptors.most = 4  # so that parents have to be found again
    real, climbed = os.open, []

    def under_pressure(path, *args, **more):
        if path == "..":
            climbed.append(path)
            run.descriptors.close_all()  # all that nobody uses at this moment
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", under_pressure)
    try:
        report = run.run()
    finally:
        monkeypatch.undo()
        plan.close()
    assert climbed
    assert (report.files_purged, report.empty_dirs_deleted, report.errors) == (12, 12, {})


@pytest.mark.soak
def test_somebody_else_may_take_nearly_all_descriptors_meanwhile(root, old) -> None:
    import resource

    path = root
    for level in range(100):
        path = path / f"{level}"
        old(path / "x")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    plan = make_plan(root, PurgeOptions(remove_empty_dirs=True))
    taken = []
    try:
        run = Run(plan)
        highest = max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 40, limits[1]))
        while len(taken) < 1000:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:  # all of them are taken
                break
        for _ in range(8):
            os.close(taken.pop())
        report = run.run()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)
        plan.close()
    assert (report.files_purged, report.empty_dirs_deleted, report.errors) == (100, 100, {})


def test_empty_siblings_go_without_a_look_inside(root, monkeypatch) -> None:
    for number in range(200):
        (root / f"{number}").mkdir()
    monkeypatch.setattr(_scaling, "SLOW", math.inf)  # one worker, however slow this machine is
    monkeypatch.setattr(_scaling, "_SILENCE", math.inf)
    listed = []
    scandir = os.scandir

    def listening(what):
        if isinstance(what, int):  # a descriptor: one of the walk's
            listed.append(what)
        return scandir(what)

    monkeypatch.setattr(os, "scandir", listening)
    report = purge(root, remove_empty_dirs=True)
    assert (report.dirs_scanned, report.empty_dirs_deleted) == (201, 200)
    assert len(listed) == 1


@pytest.mark.soak
def test_siblings_with_content_are_not_all_tried(root, new, monkeypatch) -> None:
    for number in range(200):
        new(root / f"{number}" / "x")
    tried = []
    rmdir = os.rmdir

    def counted(name, **more):
        tried.append(name)
        return rmdir(name, **more)

    monkeypatch.setattr(os, "rmdir", counted)
    report = purge(root, remove_empty_dirs=True)
    assert (report.dirs_scanned, report.empty_dirs_deleted) == (201, 0)
    assert len(tried) < 20


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
            while not (run.workers.all_begun and run.workers.busy == 1):
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


@pytest.mark.soak
def test_threads_that_can_not_be_started_now_are_started_later(
    root, old, monkeypatch, workers_of
) -> None:
    for number in range(20):
        old(root / f"{number}" / "x")
    workers_of(4)
    monkeypatch.setattr(_workers, "_RETRY_START", 0.0)
    start, unlink = threading.Thread.start, os.unlink
    refusals, both = iter(range(3)), threading.Barrier(2)
    met, started = [], []

    def refused_at_first(self) -> None:
        is_worker = self.name == "slotwise-purge"
        if is_worker and started and next(refusals, None) is not None:
            raise RuntimeError("can't start new thread")
        start(self)
        started.extend([self] * is_worker)

    def two_at_a_time(name, **more) -> None:
        if not met:  # the first one waits for another worker
            both.wait(30)
            met.append(name)
        unlink(name, **more)

    monkeypatch.setattr(threading.Thread, "start", refused_at_first)
    monkeypatch.setattr(os, "unlink", two_at_a_time)
    report = purge(root)
    assert (report.files_purged, report.errors) == (20, {})
    assert next(refusals, None) is None
    assert met
