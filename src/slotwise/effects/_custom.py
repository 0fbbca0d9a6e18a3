"""Custom effects: find and call the handler that the user gave for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any

from slotwise._core.redaction import redacted_repr
from slotwise.effects._effects import Await, Effect, use
from slotwise.effects._errors import UnhandledEffectError
from slotwise.effects._program import Program
from slotwise.effects._tasks import Task

if TYPE_CHECKING:
    from slotwise.effects._scheduler import Scheduler

Handler = Callable[..., Any]

NONE: dict[type, Handler] = {}  # for runs without handlers; never changed


def installed(
    handlers: Mapping[Any, Handler], builtin: Mapping[type, Handler]
) -> dict[type, Handler]:
    """Return the handlers of a run, checked."""
    for kind, handler in handlers.items():
        if not (isinstance(kind, type) and issubclass(kind, Effect)) or kind is Effect:
            raise TypeError(f"handlers are for subclasses of Effect, not for {redacted_repr(kind)}")
        if kind in builtin:
            raise ValueError(f"{kind.__name__} is a built-in effect and can't have a handler")
        if not callable(handler):
            raise TypeError(
                f"the handler for {kind.__name__} is not callable: {redacted_repr(handler)}"
            )
    return dict(handlers)


def answer_custom(
    scheduler: Scheduler, task: Task[Any], effect: object, builtin: Mapping[type, Handler]
) -> object:
    """Answer an effect with the handler for its class, or for the nearest base class."""
    if not isinstance(effect, Effect):
        raise TypeError(
            f"a program can yield effects and programs, not {redacted_repr(effect)}; call what"
            " makes one, decorate a generator function with @do, and Await(...) what is awaitable"
        )
    use(effect)
    for kind in type(effect).__mro__:
        if kind in scheduler.custom:
            answer = scheduler.custom[kind](effect)
            break
        if kind in builtin:
            return builtin[kind](scheduler, task, effect)
    else:
        name = type(effect).__name__
        raise UnhandledEffectError(f"no handler for {name}: {effect!r} was yielded")
    if iscoroutine(answer):
        answer = Await(answer)
    if isinstance(answer, Program | Effect):
        return scheduler.enter(task, scheduler.program_of(task, answer, "a handler").start())
    return answer
