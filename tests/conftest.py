"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Awaitable, Callable, Iterator

import hypothesis
import pytest

import slotwise.testing
from slotwise.instrumentation import Event, add_hook, remove_hook
from slotwise.redis._shared_client import _shared_clients
from slotwise.testing import FakeClock, no_leaked_slots
from tests.processes._ending import end_processes

__all__ = ["no_leaked_slots"]

pytest_plugins = ["pytester"]

# Some containers ask for no compiled files; every process that a test starts would then
# compile slotwise again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Limits that name no url would be kept there.
os.environ.pop("SLOTWISE_URL", None)

# On a busy machine an example takes as long as it takes.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

# All tests together are 300,000 objects that never go. Looking through them again and again was a
# quarter of what tests/memory used of the processor.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


# Whoever starts the tests may ignore signals: SIGINT and SIGQUIT a shell that puts them into the
# background, SIGHUP nohup, SIGUSR2 perf. So would the commands that tests send signals to. Python
# itself ignores two.
for _number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
    if signal.getsignal(_number) is signal.SIG_IGN:
        default = signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL
        signal.signal(_number, default)


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


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """Unblock signals: ``slotwise run`` in this process leaves them blocked.

    Commands that later tests start would inherit that, and never hear of theirs.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    if signal.SIGTTOU in signal.sigpending():  # its mark that it was not continued
        signal.sigwait({signal.SIGTTOU})
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.fixture(autouse=True)
def redis_clients_end() -> Iterator[None]:
    """End the clients of a test with it: they would go on for seconds, and not only in silence.

    Another test's server may have stopped, which they log, and a late call of theirs would be one
    too many for a test that counts what its server is asked.
    """
    yield
    for endpoint in list(_shared_clients):
        _shared_clients.pop(endpoint).end()


@pytest.fixture(autouse=True)
def processes_end() -> Iterator[None]:
    """End the wake-up threads of a test with it: they would run in what later tests replace."""
    yield
    end_processes()


@pytest.fixture
def heard() -> Iterator[list[Event]]:
    """The events of this test, as hooks are told of them."""
    heard: list[Event] = []
    add_hook(heard.append)
    yield heard
    remove_hook(heard.append)
