"""What tests need of the standard library that it has no public name for."""

from __future__ import annotations

import asyncio
import os
import sys
from types import FrameType
from typing import Any, NoReturn


def leave(code: int = 0) -> NoReturn:
    """End a forked child at once: it must not run on in its parent's test."""
    os._exit(code)


def discard(task: asyncio.Task[Any]) -> None:
    """Forget a task of a closed loop without asyncio's complaint."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def frame_of(thread: int | None) -> FrameType | None:
    """Where a thread is."""
    return sys._current_frames().get(thread or 0)
