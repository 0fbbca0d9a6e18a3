"""Renew locks, identities and threads in a forked child, in a fixed order.

A fork copies the memory of the process and only the thread that forks. A lock that
another thread held stays locked in the child, a thread that was running does not
exist there, and sockets and descriptors are shared with the parent. So everything
of ours that outlives a call is renewed here, before ``os.fork`` returns in the child:

    0  locks      each one that the forking thread doesn't hold is replaced; the lock
                  of sections is held during the fork, so what it guards is consistent
    1  FORGET     drivers drop what belongs to the parent: identities, descriptors, sockets
    2  THREADS    threads start again, after all of the above

No other module registers itself with ``os.register_at_fork``. A thread that started
before the rest was renewed would wait for a lock that nobody is left to release.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from enum import IntEnum
from weakref import WeakSet

_log = logging.getLogger("slotwise")


class Step(IntEnum):
    """When a renewal runs; within a step, in the order of registration."""

    FORGET = 1
    THREADS = 2


_locks: WeakSet[threading.RLock] = WeakSet()
_held: list[threading.RLock] = []
_renewals: list[tuple[Step, Callable[[], object]]] = []


def new_lock() -> threading.RLock:
    """Return a re-entrant lock that is free in a forked child, whoever held it in the parent."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def lock_held_over_forks() -> threading.RLock:
    """Return a re-entrant lock that the forking thread holds while the process is copied.

    So what it guards is never copied half changed. Its holder must not wait for another
    thread.
    """
    lock = threading.RLock()
    _held.append(lock)
    return lock


def in_child(step: Step, renew: Callable[[], object]) -> None:
    """Call ``renew`` in every forked child; one that fails doesn't stop the others."""
    _renewals.append((step, renew))
    _renewals.sort(key=lambda entry: entry[0])  # stable


def _before() -> None:
    for lock in _held:
        lock.acquire()


def _release() -> None:
    for lock in reversed(_held):
        lock.release()


def _renew() -> None:
    for lock in list(_locks):
        # If a signal handler or finalizer forked inside it, this thread will release it.
        if not lock._is_owned():  # type: ignore[attr-defined]
            lock._at_fork_reinit()  # type: ignore[attr-defined]
    _release()
    for _, renew in _renewals:
        try:
            renew()
        except Exception:
            _log.exception("after a fork: %r failed", renew)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_renew)
