"""Our handler of SIGTERM among those of others."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from slotwise.integrations._sigterm import handler


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """What was called at SIGTERM, with a server's handler that is there from the beginning."""
    heard: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("server"))
    yield heard
    signal.signal(signal.SIGTERM, before)


def test_all_listeners_are_called_before_the_handler_of_the_server(heard: list[str]) -> None:
    def first() -> None:
        heard.append("first")

    def second() -> None:
        heard.append("second")

    for listener in (first, second, first, second):  # at start-up, and with the first request
        handler.add(listener)
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["first", "second", "server"]
    handler.remove(first)
    handler.remove(first)
    heard.clear()
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["second", "server"]
    handler.remove(second)
    heard.clear()
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["server"]


def test_a_handler_that_comes_later_and_calls_ours_is_called_once(heard: list[str]) -> None:
    def listener() -> None:
        heard.append("listener")

    handler.add(listener)
    ours = signal.getsignal(signal.SIGTERM)

    def later(number, frame) -> None:
        heard.append("later")
        ours(number, frame)

    signal.signal(signal.SIGTERM, later)
    handler.add(listener)
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["listener", "later", "server"]
    handler.remove(listener)
    assert signal.getsignal(signal.SIGTERM) is later
    heard.clear()
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["later", "server"]


def test_nothing_is_installed_where_sigterm_ends_the_process_or_in_another_thread(heard) -> None:
    def listener() -> None:
        heard.append("listener")

    thread = threading.Thread(target=handler.add, args=[listener])
    thread.start()
    thread.join()
    handler.remove(listener)
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["server"]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    handler.add(listener)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
