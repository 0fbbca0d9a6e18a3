"""The pytest plugin: tests that share a scarce resource, leak checks, a fake clock.

pytest loads it by itself where slotwise is installed. No driver is imported until a test uses one.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise._core.arguments import check_name
from slotwise.integrations._extras import needs

with needs("pytest"):
    import pytest

if TYPE_CHECKING:
    from slotwise._core.event import Event
    from slotwise.testing import FakeClock

__all__ = ["SlotLeakWarning", "fake_clock"]

_MARK = "slots(name, value, slots=1): hold slots of this machine while the test runs"
_PACKAGE = str(Path(__file__).parents[1])
# What was wrong with the marks of a test, until its set-up can report it.
_error = pytest.StashKey[BaseException | None]()
_watch = pytest.StashKey["_LeakWatch"]()


class SlotLeakWarning(pytest.PytestWarning):
    """A test ended and had not released what it had acquired."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "slotwise_leaks",
        "what to do about tests that don't release what they acquire: off, warn or error",
        default="off",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARK)
    mode = config.getini("slotwise_leaks")
    if mode not in ("off", "warn", "error"):
        raise pytest.UsageError(f"slotwise_leaks must be off, warn or error, not {mode!r}")
    if mode != "off":
        config.stash[_watch] = _LeakWatch(fails=mode == "error")


def pytest_unconfigure(config: pytest.Config) -> None:
    watch = config.stash.get(_watch, None)
    if watch is not None:
        watch.stop()


@pytest.fixture
def fake_clock() -> Iterator[FakeClock]:
    """The clock of slotwise, moved by ``fake_clock.advance(seconds)`` alone."""
    from slotwise.testing import FakeClock

    with FakeClock() as clock:
        yield clock


# ------------------------------------------------------------- @pytest.mark.slots


# First, so that it is around that of pytest-timeout: waiting doesn't count.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    with ExitStack() as held:
        item.stash[_error] = None
        try:
            for name, value, slots in _marked(item):
                from slotwise._urls import semaphore

                limit = semaphore(name, value, url="process://")
                held.enter_context(limit.cm(slots, label=item.nodeid))
        except Exception as error:
            held.close()
            item.stash[_error] = error
        watch = item.config.stash.get(_watch, None)
        if watch is not None:
            watch.begin()
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    error = item.stash.get(_error, None)
    if error is not None:
        pytest.fail(f"@pytest.mark.slots: {error}", pytrace=False)


def _marked(item: pytest.Item) -> list[tuple[str, int, int]]:
    """The slots that a test asks for, each name once, the closest mark counting.

    They are sorted, so that tests with several marks can't wait for each other in a circle.
    A test that is going to be skipped asks for none.
    """
    if _is_skipped(item):
        return []
    found: dict[str, tuple[str, int, int]] = {}
    for mark in item.iter_markers("slots"):
        request = _request(*mark.args, **mark.kwargs)
        found.setdefault(request[0], request)
    return [found[name] for name in sorted(found)]


def _is_skipped(item: pytest.Item) -> bool:
    """Whether marks skip a test. Conditions given as text are left to pytest: such a test waits."""
    if item.get_closest_marker("skip") is not None:
        return True
    conditions = [
        condition
        for mark in item.iter_markers("skipif")
        for condition in (*mark.args, mark.kwargs.get("condition", False))
    ]
    return any(condition for condition in conditions if not isinstance(condition, str))


def _request(name: str, value: int, slots: int = 1) -> tuple[str, int, int]:
    """Name the arguments of a mark; without a name there would be nothing to share."""
    if check_name(name) is None:
        raise TypeError("the name must be a str")
    return name, value, slots


_request.__qualname__ = "slots"  # as messages about wrong arguments call it


# -------------------------------------------------------------------------- leaks


class _LeakWatch:
    """Remembers where the acquisitions of the current test were made, until they end."""

    def __init__(self, *, fails: bool) -> None:
        from slotwise._core.events import add_hook

        self._fails = fails
        self._lines: dict[str, str] = {}
        self.watching = False
        add_hook(self._note)

    def stop(self) -> None:
        from slotwise._core.events import remove_hook

        remove_hook(self._note)

    def begin(self) -> None:
        self._lines.clear()
        self.watching = True

    def _note(self, event: Event) -> None:
        if event.acquisition_id is None:
            return
        # Acquisitions of rates alone are never released: they have no values.
        if event.kind == "requested" or (event.kind == "acquired" and event.values):
            if self.watching and event.acquisition_id not in self._lines:
                name = "a private limit" if event.name is None else repr(event.name)
                self._lines[event.acquisition_id] = f"{name}, acquired at {_line_of_caller()}"
        else:
            self._lines.pop(event.acquisition_id, None)

    def end(self, item: pytest.Item) -> None:
        self.watching = False
        if self._lines:
            gc.collect()  # what is only garbage is not a leak
        leaks = sorted(self._lines.values())
        self._lines.clear()
        if not leaks:
            return
        words = "the test did not release: " + "; ".join(leaks)
        if self._fails:
            pytest.fail(words, pytrace=False)
        item.warn(SlotLeakWarning(words))


def _line_of_caller() -> str:
    """The file and line outside of slotwise that asked."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    result = yield
    watch = item.config.stash.get(_watch, None)
    if watch is not None:
        watch.end(item)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """What a fixture of several tests acquires is not a leak of the first one."""
    watch = request.config.stash.get(_watch, None)
    if watch is None or fixturedef.scope == "function":
        return (yield)
    watch.watching = False
    try:
        return (yield)
    finally:
        watch.watching = True
