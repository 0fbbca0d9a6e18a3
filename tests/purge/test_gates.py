"""WorkerGate: so many at a time, the others in the order of arrival."""

from __future__ import annotations

import os
import sys
import threading
import time
from itertools import pairwise

import pytest
from tests.purge._inside import begin_all, purge_names, queue_of

from slotwise.purge import PurgeOptions, Run, make_plan
from slotwise.purge._gates import WorkerGate
from slotwise.purge._identity import identity_of
from slotwise.purge._tree import DirectoryNode


def wait_until(reached) -> None:
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.0001)


def test_those_who_wait_enter_in_the_order_of_arrival() -> None:
    gate, order = WorkerGate(1), []
    gate.enter()

    def worker(number: int) -> None:
        gate.enter()
        order.append(number)
        gate.leave()

    workers = []
    for number in range(5):
        workers.append(threading.Thread(target=worker, args=(number,)))
        workers[-1].start()
        wait_until(lambda: len(queue_of(gate)) == len(workers))
    gate.leave()
    for each in workers:
        each.join(30)
    assert order == [0, 1, 2, 3, 4]


def test_a_worker_that_requeues_goes_behind_the_waiting_ones() -> None:
    gate, order = WorkerGate(1), []
    gate.requeue()  # nobody waits, so nothing happens
    gate.enter()

    def other() -> None:
        gate.enter()
        order.append("other")
        gate.leave()

    thread = threading.Thread(target=other)
    thread.start()
    wait_until(lambda: len(queue_of(gate)))
    gate.requeue()
    order.append("first")
    gate.requeue()
    order.append("first again")
    gate.leave()
    thread.join(30)
    assert order == ["other", "first", "first again"]


@pytest.mark.soak
def test_two_that_requeue_alternate_however_slow_one_of_them_is() -> None:
    gate, order = WorkerGate(1), []
    gate.enter()

    def worker(name: str) -> None:
        gate.enter()
        for _ in range(1000):
            order.append(name)
            gate.requeue()
        gate.leave()

    workers = [threading.Thread(target=worker, args=(name,)) for name in "ab"]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # one is stopped again and again, between any two steps
    try:
        for each in workers:
            each.start()
        wait_until(lambda: len(queue_of(gate)) == 2)
        gate.leave()
        for each in workers:
            each.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert all(one != other for one, other in pairwise(order))
    assert len(order) == 2000


def test_never_more_than_the_limit_and_none_is_forgotten() -> None:
    gate, limit = WorkerGate(3), 3
    inside: list[int] = []
    seen: list[int] = []

    def worker(number: int) -> None:
        for _ in range(200):
            gate.enter()
            inside.append(number)
            seen.append(len(inside))
            inside.remove(number)
            gate.requeue()
            gate.leave()

    workers = [threading.Thread(target=worker, args=(number,)) for number in range(12)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(60)
    assert len(seen) == 12 * 200
    assert max(seen) <= limit
    for _ in range(limit):
        gate.enter()  # there is room again for so many


@pytest.mark.parametrize("all_begun", [True, False])
def test_directories_alternate_only_once_all_are_begun(root, old, monkeypatch, all_begun) -> None:
    for name in "ab":
        for number in range(40):
            old(root / name / f"{name}{number}")
    plan = make_plan(root, PurgeOptions())
    run = Run(plan)
    if all_begun:
        begin_all(run)
    gate = run.gates.work = WorkerGate(1)
    unlink, order = os.unlink, []

    def unlinking(name, **more):
        if not order:
            wait_until(lambda: len(queue_of(gate)))
        order.append(name[0])
        unlink(name, **more)

    def worker(name: str) -> None:
        names = [path.name for path in (root / name).iterdir()]
        fd = os.open(root / name, os.O_RDONLY)
        node = DirectoryNode(run.root, name, fd, identity_of(fd), 1)
        assert not purge_names(run, node, names)
        os.close(fd)

    monkeypatch.setattr(os, "unlink", unlinking)
    workers = [threading.Thread(target=worker, args=(name,)) for name in "ab"]
    for each in workers:
        each.start()
    for each in workers:
        each.join(60)
    monkeypatch.undo()
    plan.close()
    changes = sum(one != other for one, other in pairwise(order))
    assert len(order) == 80
    assert changes == (5 if all_begun else 1)  # 16, 16 and 8 of each, or all at once
