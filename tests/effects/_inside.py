"""What tests look at inside the semaphores of a run; everything else is asked with effects."""

from __future__ import annotations

from typing import Any


def ledger_of(semaphore: Any) -> Any:
    return semaphore._ledger


def node_of(semaphore: Any) -> Any:
    """What is in use and what is free, by the ledger."""
    return semaphore._node


def scheduler_of(semaphore: Any) -> Any:
    """What runs the tasks that it is for."""
    return semaphore._scheduler


def left_by_ended_tasks(semaphore: Any) -> Any:
    """The permits that tasks held when they ended."""
    return semaphore._left
