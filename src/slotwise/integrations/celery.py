"""limited: a limit for tasks of Celery."""

from __future__ import annotations

from typing import Any, NoReturn

from slotwise.integrations._extras import needs_extra
from slotwise.integrations._holding import Holding
from slotwise.integrations._tasks import delay_of, task_decorator

with needs_extra("celery"):
    from celery import current_task
    from celery.exceptions import Retry

__all__ = ["limited"]


def _requeue(holding: Holding) -> NoReturn:
    """Send the task again, as `Task.retry` does, but without counting a retry."""
    task: Any = current_task
    request = task.request if task else None
    if request is None or request.called_directly or request.is_eager:
        raise RuntimeError('on_full="requeue" needs a worker: the task was called directly')
    delay = delay_of(holding)
    again = task.signature_from_request(request, countdown=delay, retries=request.retries)
    again.apply_async()
    raise Retry("the limit is full", when=delay, sig=again)


limited = task_decorator(_requeue)
