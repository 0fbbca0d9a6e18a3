"""Fixtures for all tests."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import os
import signal
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator

import hypothesis
import pytest

import slotwise.testing
from slotwise.instrumentation import Event, add_hook, remove_hook
from slotwise.redis._shared_client import _shared_clients
from slotwise.testing import FakeClock, no_leaked_slots
from tests import _fresh_processes
from tests._stdlib import frame_of
from tests.processes._ending import end_processes

__all__ = ["no_leaked_slots"]

pytest_plugins = ["pytester"]

# Some containers ask for no compiled files; every process that a test starts would then
# compile slotwise again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Limits that name no url would be kept there.
os.environ.pop("SLOTWISE_URL", None)

# On a busy machine an example takes as long as it takes. `make test` has the same ones every time,
# and `make soak` others each time.
hypothesis.settings.register_profile(
    "any machine",
    deadline=None,
    derandomize="SLOTWISE_EXAMPLES" not in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
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


def open_descriptors() -> dict[str, str]:
    """The descriptors of this process, by number, with what they are."""
    found = {}
    listing = f"/proc/{os.getpid()}/fd"
    with contextlib.suppress(FileNotFoundError):  # on other systems than Linux
        for each in os.scandir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                what = os.readlink(each.path)  # noqa: PTH115 - of every test, twice
                if what != listing:  # its own descriptor may be another one each time
                    found[each.name] = what
    return found


# Threads that belong to no test: one for the timers of the process, and idle ones that trio keeps.
_SHARED_THREADS = ("slotwise-timekeeper", "timekeeper", "Trio thread")


@pytest.fixture(autouse=True)
def nothing_is_left(what_all_tests_share: None) -> Iterator[None]:
    """End what a test has used of slotwise with it, and fail one that leaves anything else.

    What lived on would run in what later tests replace, count or log.
    """
    threads, descriptors = {*threading.enumerate()}, open_descriptors()
    yield
    for endpoint in list(_shared_clients):
        _shared_clients.pop(endpoint).end()
    end_processes()

    def left() -> list[str]:
        running = {*threading.enumerate()} - threads
        found = open_descriptors().items() - descriptors.items()
        return [
            *(_where(each) for each in running if not each.name.startswith(_SHARED_THREADS)),
            *(f"descriptor {number}: {what}" for number, what in found),
        ]

    if left():  # or a thread is about to end
        gc.collect()
        deadline = time.monotonic() + 30
        while left() and time.monotonic() < deadline:
            time.sleep(0.001)
            end_processes()  # a thread may have opened a file just before it ended
        assert not (found := left()), "left behind: " + "\n".join(found)


def _where(thread: threading.Thread) -> str:
    frame = frame_of(thread.ident)
    return f"{thread} at\n{''.join(traceback.format_stack(frame)) if frame else '?'}"


@pytest.fixture(scope="session")
def what_all_tests_share() -> None:
    """What a test may use first and others use later, too."""
    _fresh_processes.prepare()


@pytest.fixture
def heard() -> Iterator[list[Event]]:
    """The events of this test, as hooks are told of them."""
    heard: list[Event] = []
    add_hook(heard.append)
    yield heard
    remove_hook(heard.append)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fail coroutines that leave tasks behind: the end of their loop would hide them."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _ending_its_tasks(item.obj)


def _ending_its_tasks(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def checked(*args: object, **fixtures: object) -> None:
        await test(*args, **fixtures)
        deadline = time.monotonic() + 10
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            assert time.monotonic() < deadline, f"the test has left tasks behind: {left}"
            await asyncio.sleep(0.001)

    return checked
