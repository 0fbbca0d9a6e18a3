"""Fixtures for all tests."""

from __future__ import annotations

import gc
import signal
from collections.abc import Awaitable, Callable, Iterator

import pytest

import slotwise.testing
from slotwise.testing import FakeClock, no_leaked_slots

__all__ = ["no_leaked_slots"]

pytest_plugins = ["pytester"]


@pytest.fixture
def settle() -> Callable[[], Awaitable[None]]:
    return slotwise.testing.settle


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock() as clock:
        yield clock


@pytest.fixture
def collect() -> Callable[[], None]:
    """Collect garbage, twice: finalizers make garbage themselves."""

    def twice() -> None:
        gc.collect()
        gc.collect()

    return twice


@pytest.fixture
def signals_as_before() -> Iterator[None]:
    """For tests that call ``slotwise run`` in this process: it leaves signals blocked."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
