"""limited: a limit for actors of Dramatiq."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NoReturn

from slotwise.integrations._extras import needs_extra
from slotwise.integrations._holding import Holding
from slotwise.integrations._tasks import delay_of, task_decorator

with needs_extra("dramatiq"):
    import dramatiq.broker
    from dramatiq.middleware import Middleware, SkipMessage

__all__ = ["RequeueMiddleware", "limited"]

_current: ContextVar[tuple[Any, Any] | None] = ContextVar(
    "current broker and message", default=None
)


class RequeueMiddleware(Middleware):
    """Lets ``on_full="requeue"`` find the message to put back.

    ``limited`` adds it to the global broker. A broker that is passed to actors needs it too:
    ``broker.add_middleware(RequeueMiddleware())``.
    """

    def before_process_message(self, broker: Any, message: Any) -> None:
        _current.set((broker, message))

    def after_process_message(self, broker: Any, message: Any, **_outcome: Any) -> None:  # noqa: ARG002
        _current.set(None)

    after_skip_message = after_process_message


def _requeue(holding: Holding) -> NoReturn:
    """Send the message again, with a delay, and leave this one without a result or a retry."""
    current = _current.get()
    if current is None:
        raise RuntimeError(
            'on_full="requeue" needs a worker, whose broker has the middleware'
            " slotwise.integrations.dramatiq.RequeueMiddleware"
        )
    broker, message = current
    broker.enqueue(message, delay=round(1000 * delay_of(holding)))
    # The middleware for results would store None for what is skipped, and whoever waits for the
    # result would take it for the result. The message in the queue has its own options.
    message.options["store_results"] = False
    raise SkipMessage("the limit is full")


def _prepare() -> None:
    broker: Any = dramatiq.broker.global_broker
    if broker is not None and not any(
        isinstance(each, RequeueMiddleware) for each in broker.middleware
    ):
        broker.add_middleware(RequeueMiddleware())


limited = task_decorator(_requeue, _prepare)
