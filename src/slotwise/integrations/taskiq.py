"""limited: a limit for tasks of taskiq."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from slotwise.integrations._decorator import TRY_AGAIN
from slotwise.integrations._extras import needs_extra
from slotwise.integrations._holding import Holding
from slotwise.integrations._tasks import delay_of, delay_of_async, task_decorator

with needs_extra("taskiq"):
    import taskiq as _taskiq  # noqa: F401

__all__ = ["limited"]


def _sleep(holding: Holding) -> Any:
    """Sleep in the worker, without a slot and without a place in line, and try again.

    A queue of taskiq has no delays of its own. A coroutine that sleeps costs its worker nothing
    but memory; a plain function occupies a thread.
    """
    if asyncio._get_running_loop() is not None:
        return _sleep_async(holding)
    time.sleep(delay_of(holding))
    return TRY_AGAIN


async def _sleep_async(holding: Holding) -> Any:
    await asyncio.sleep(await delay_of_async(holding))
    return TRY_AGAIN


limited = task_decorator(_sleep)
