"""The ages of a large directory are read by all workers, just ahead of the deletions."""

from __future__ import annotations

import os
import threading
import time
from random import Random
from types import SimpleNamespace

import pytest

from slotwise.purge import _files, purge
from slotwise.purge._ages import Ages, DeletionStatistics, OldFile

RUNNING = SimpleNamespace(stopping=False)


def old(name: str) -> OldFile:
    return OldFile(name, os.stat_result([0] * 10), time.monotonic() + 60)


def alone(ages: Ages, young: set[str] = frozenset(), run=RUNNING) -> list[str]:
    """What the owner gets if nobody helps."""

    def read(ages: Ages, name: str) -> None:
        ages.put(None if name in young else old(name), kept=name in young)

    return [each.name for each in ages.old_ones(read, lambda *_: None, run)]


def test_an_owner_without_readers_gets_every_old_name_in_order() -> None:
    ages = Ages(None, list("abcdef"), DeletionStatistics())
    assert alone(ages, young={"b", "e"}) == ["a", "c", "d", "f"]
    assert ages.kept


def test_a_stopped_owner_waits_for_those_who_use_its_descriptor() -> None:
    ages = Ages(None, list("abc"), DeletionStatistics())
    run = SimpleNamespace(stopping=False)
    name = ages.take()
    run.stopping = True
    left = threading.Event()
    owner = threading.Thread(target=lambda: (alone(ages, run=run), left.set()))
    owner.start()
    assert not left.wait(0.05)
    ages.put(old(name), kept=False)
    owner.join(30)
    assert left.is_set()
    assert ages.take() is None


@pytest.mark.parametrize("seed", range(20))
def test_with_any_number_of_readers_each_old_name_comes_once(seed: int) -> None:
    dice = Random(seed)
    names = [str(number) for number in range(300)]
    young = {name for name in names if dice.random() < dice.random()}
    ages = Ages(None, names, DeletionStatistics())
    over = threading.Event()

    def help_out() -> None:
        while not over.is_set():
            name = ages.take()
            while name is not None:
                name = ages.put(None if name in young else old(name), kept=name in young, more=True)

    helpers = [threading.Thread(target=help_out) for _ in range(dice.randrange(5))]
    for each in helpers:
        each.start()
    found = alone(ages, young)
    over.set()
    for each in helpers:
        each.join(30)
    assert sorted(found) == sorted(set(names) - young)
    assert ages.kept == bool(young)


def test_an_age_that_was_read_too_long_ago_is_read_again(
    root, old, monkeypatch, workers_of
) -> None:
    monkeypatch.setattr(_files, "FRESH_FOR", 0.0)
    for number in range(40):
        old(root / f"{number}")
    look = _files.Files._read

    def touching(self, name, fd):
        found = look(self, name, fd)
        os.utime(name, dir_fd=fd)  # right after its age was read
        return found

    workers_of(4)
    monkeypatch.setattr(_files.Files, "_read", touching)
    monkeypatch.setattr(_files, "FRESH", 0.0)
    monkeypatch.setattr(_files, "_STILL_FRESH", 0.0)
    report = purge(root)
    assert report.files_purged == 0
    assert len(list(root.iterdir())) == 40
