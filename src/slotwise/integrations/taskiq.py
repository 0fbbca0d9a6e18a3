"""limited: a limit for tasks of taskiq."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

from slotwise.integrations._decorator import TRY_AGAIN
from slotwise.integrations._extras import needs_extra
from slotwise.integrations._holding import Holding
from slotwise.integrations._tasks import delay_of, task_decorator

with needs_extra("taskiq"):
    from taskiq import TaskiqMiddleware
    from taskiq.exceptions import NoResultError
    from taskiq.kicker import AsyncKicker

__all__ = ["RequeueMiddleware", "limited"]


class RequeueMiddleware(TaskiqMiddleware):
    """Lets ``on_full="requeue"`` put tasks back by way of a schedule source::

        source = ListRedisScheduleSource(url)
        broker.add_middlewares(RequeueMiddleware(source))

    A scheduler has to run with the same source: ``taskiq scheduler``. Without this middleware, such
    a task sleeps in its worker.

    Args:
        schedule_source: where to put them until they are due.
    """

    def __init__(self, schedule_source: Any) -> None:
        super().__init__()
        self._source = schedule_source

    async def pre_execute(self, message: Any) -> Any:
        _current.set((self, message, asyncio.get_running_loop()))
        return message

    def post_execute(self, message: Any, result: Any) -> None:  # noqa: ARG002
        _current.set(None)

    async def requeue(self, message: Any, delay: float) -> None:
        due = datetime.now(UTC) + timedelta(seconds=delay)
        kicker: Any = AsyncKicker(message.task_name, self.broker, message.labels)
        await kicker.with_task_id(message.task_id).schedule_by_time(
            self._source, due, *message.args, **message.kwargs
        )


_current: ContextVar[tuple[RequeueMiddleware, Any, asyncio.AbstractEventLoop] | None] = ContextVar(
    "current middleware, message and loop", default=None
)


def _requeue(holding: Holding) -> Any:
    """Put the task back if there is a schedule source, else sleep and try again.

    It sleeps without a slot and without a place in line. A coroutine that sleeps costs its worker
    nothing but memory; a plain function occupies a thread.
    """
    if asyncio._get_running_loop() is not None:
        return _requeue_async(holding)
    delay = delay_of(holding)
    current = _current.get()
    if current is None:
        time.sleep(delay)
        return TRY_AGAIN
    middleware, message, loop = current
    asyncio.run_coroutine_threadsafe(middleware.requeue(message, delay), loop).result()
    raise NoResultError


async def _requeue_async(holding: Holding) -> Any:
    delay = await asyncio.to_thread(delay_of, holding)
    current = _current.get()
    if current is None:
        await asyncio.sleep(delay)
        return TRY_AGAIN
    middleware, message, _ = current
    await middleware.requeue(message, delay)
    raise NoResultError


limited = task_decorator(_requeue)
