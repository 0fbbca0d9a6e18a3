"""What the adapters of task queues share: the decorator, and when a full limit is tried again.

How a task goes back to its queue is up to each adapter.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from slotwise._core.adaptive import Adaptive
from slotwise._core.arguments import UNSET, Unset
from slotwise._core.limit import Limit
from slotwise.errors import SlotwiseError
from slotwise.integrations._decorator import Limited, make_decorator
from slotwise.integrations._holding import Holding, check_on_full
from slotwise.tiers import Tiers

if TYPE_CHECKING:
    from slotwise.redis import RedisConfig

OnFullTask = Literal["wait", "requeue", "skip", "replace", "raise"]
_CHOICES = ("wait", "requeue", "skip", "replace", "raise")

# A task that finds the limit full comes back after this many seconds at least.
_SHORTEST_DELAY = 0.5


def task_decorator(
    requeue: Callable[[Holding], Any], prepare: Callable[[], object] = lambda: None
) -> Callable[..., Limited]:
    """Return the ``limited`` of a task queue.

    ``requeue`` puts the current task back; ``prepare`` is called when a task is decorated that
    may need that.
    """

    def limited(
        limit: str | Limit | Tiers | Callable[..., Limit | None] | Unset = UNSET,
        value: int | Adaptive | None = None,
        *,
        url: str | RedisConfig | None = None,
        timeout: float | Unset | None = UNSET,
        cost: int | Callable[..., int] = 1,
        priority: float = 0,
        on_full: OnFullTask = "wait",
    ) -> Limited:
        """Make every run of a task hold a slot; put it under the decorator of the task queue.

        The arguments are those of `slotwise.limited`. ``on_full`` may also be "requeue": the task
        goes back to its queue, with its arguments and its retry counter, and comes back when a
        slot may be free. "wait" waits inside the worker, which does nothing else meanwhile.
        """
        check_on_full(on_full, _CHOICES)
        if on_full == "requeue":
            prepare()
        decorator: Limited = make_decorator(
            limit,
            value,
            url=url,
            timeout=timeout,
            cost=cost,
            priority=priority,
            on_full=on_full,
            instead=requeue if on_full == "requeue" else lambda _holding: None,
        )
        return decorator

    return limited


def delay_of(holding: Holding) -> float:
    """Return in how many seconds a task should come back: when a slot may be free, or later.

    Tasks that were refused together don't come back together.
    """
    assert holding.limit is not None
    estimate = None
    with suppress(SlotwiseError):
        estimate = holding.limit.estimate_sync()
    return max(estimate or 0.0, _SHORTEST_DELAY) * random.uniform(1, 1.5)  # noqa: S311
