"""Sync from async, once: the twin of a coroutine method, for plain threads.

`twin` derives it. A limit says in ``_run`` how its coroutines run for a plain thread: on Redis in
the heartbeat thread; elsewhere by `run_here`, in the calling thread itself. There they never
suspend: where they would wait, they ask `is_blocking` and block the thread instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from slotwise._core import messages
from slotwise._core.running_loop import running_loop

P = ParamSpec("P")
T = TypeVar("T")


def refuse_to_block_a_loop(call: str) -> None:
    """Raise if the calling thread runs an event loop, which a blocking call would stop."""
    if running_loop() is not None:
        raise messages.would_block_loop(call)


def twin(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
    *,
    waits: bool = False,
    completes: bool = False,
) -> Callable[Concatenate[Any, P], T]:
    """Return the twin of a coroutine method, for plain threads.

    ``acquire_sync = twin(acquire)`` is all that a verb needs. The method is called by its name, so
    a subclass overrides both at once.

    Args:
        method: a coroutine method of a class that has ``_run``.
        waits: it may wait for others: refuse to be called in the thread of an event loop.
        completes: it is done even if the calling thread is interrupted.
    """
    name = method.__name__
    written = name.removeprefix("_")

    @wraps(method, updated=())  # or it would be abstract where the method is
    def call_here(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        if waits:
            refuse_to_block_a_loop(f"{written}_sync()")
        result: T = self._run(partial(getattr(self, name), *args, **options), completes=completes)
        return result

    call_here.__name__ += "_sync"
    call_here.__qualname__ += "_sync"
    call_here.__doc__ = f"Like `{written}`, " + (
        "blocking this thread; not in that of an event loop." if waits else "for plain threads."
    )
    return call_here


class Wider(Generic[P, T]):
    """``Wider(acquire).twin`` is `twin` where a subclass takes more than its base class does.

    Only for mypy, which would otherwise infer the parameters of the base class's twin.
    """

    def __init__(
        self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], *, waits: bool = False
    ) -> None:
        self.twin = twin(method, waits=waits)


class _ThisThread(threading.local):
    # The event loop that was running when `run_here` was called; what isn't one if it wasn't.
    loop: object = ()


_this_thread = _ThisThread()


def run_here(start: Callable[[], Coroutine[Any, Any, T]], *, completes: bool = False) -> T:  # noqa: ARG001 - it always does
    """Run a coroutine to its end in this thread; where it would suspend, it blocks."""
    here, before = _this_thread, _this_thread.loop
    here.loop = running_loop()
    try:
        coroutine = start()
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        here.loop = before
    coroutine.close()
    raise RuntimeError(f"it suspended where it has to block: {coroutine!r}")


def is_blocking() -> bool:
    """Return whether the running coroutine was called by `run_here`."""
    # A function of the user's that it calls may run a loop of its own: tasks there suspend.
    return _this_thread.loop is running_loop()
