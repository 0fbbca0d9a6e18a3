"""SigtermListener among the handlers of others."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from slotwise.integrations._sigterm import SigtermListener


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """What was called at SIGTERM, with a server's handler that is there from the beginning."""
    heard: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("server"))
    yield heard
    signal.signal(signal.SIGTERM, before)


def test_all_listeners_are_called_before_the_handler_of_the_server(heard: list[str]) -> None:
    first = SigtermListener(lambda: heard.append("first"))
    second = SigtermListener(lambda: heard.append("second"))
    for listener in (first, second, first, second):  # at start-up, and with the first request
        listener.install()
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["first", "second", "server"]
    first.remove()
    first.remove()
    heard.clear()
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["second", "server"]
    second.remove()
    heard.clear()
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["server"]


def test_a_handler_that_comes_later_and_calls_ours_is_called_once(heard: list[str]) -> None:
    listener = SigtermListener(lambda: heard.append("listener"))
    listener.install()
    ours = signal.getsignal(signal.SIGTERM)

    def later(number, frame) -> None:
        heard.append("later")
        ours(number, frame)

    signal.signal(signal.SIGTERM, later)
    listener.install()
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["listener", "later", "server"]
    listener.remove()
    assert signal.getsignal(signal.SIGTERM) is later
    heard.clear()
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["later", "server"]


def test_nothing_is_installed_where_sigterm_ends_the_process_or_in_another_thread(heard) -> None:
    listener = SigtermListener(lambda: heard.append("listener"))
    thread = threading.Thread(target=listener.install)
    thread.start()
    thread.join()
    listener.remove()
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["server"]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    listener.install()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
