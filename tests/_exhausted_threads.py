"""Let the system have no thread left."""

from __future__ import annotations

import threading

import pytest


def refuse_threads(monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> list[str]:
    """Let the system have no thread left, so many times, for those of a name."""
    refused: list[str] = []
    start = threading.Thread.start

    def start_unless_refused(thread: threading.Thread) -> None:
        if thread.name == name and len(refused) < times:
            refused.append(name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_unless_refused)
    return refused
