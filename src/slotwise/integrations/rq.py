"""limited: a limit for jobs of RQ."""

from __future__ import annotations

import math
from typing import Any

from slotwise.integrations._extras import needs_extra
from slotwise.integrations._holding import Holding
from slotwise.integrations._tasks import delay_of, task_decorator

with needs_extra("rq"):
    from rq import Retry, get_current_job

__all__ = ["limited"]

# RQ counts how often a job came back by itself, apart from the retries after failures.
_ALWAYS = 2**31


def _requeue(holding: Holding) -> Any:
    """Return what makes RQ schedule the job again; the worker needs ``--with-scheduler``."""
    if get_current_job() is None:
        raise RuntimeError('on_full="requeue" needs a worker: the job was called directly')
    return Retry(max=_ALWAYS, interval=math.ceil(delay_of(holding)))


limited = task_decorator(_requeue)
