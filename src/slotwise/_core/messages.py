"""The text of messages that callers see in exceptions and logs, the same on every driver.

Nothing here raises. Messages of one driver only are in its own module: `redis._diagnosis`,
`processes._messages`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from slotwise._core.closing import Closure
from slotwise.errors import (
    AcquireTimeout,
    BackendError,
    ContextReused,
    LimitFull,
    SemaphoreClosed,
    SlotwiseError,
    ValueConflict,
    WouldBlockLoop,
)

if TYPE_CHECKING:
    from slotwise._core.adaptive import Adaptive

E = TypeVar("E", bound=SlotwiseError)


def display(name: str | None) -> str:
    """Return a semaphore's name for use in messages."""
    return "a private semaphore" if name is None else repr(name)


# ------------------------------------------------------------------- acquiring


def no_slot(title: str, waited: float, why: str) -> AcquireTimeout:
    return wait_failed(AcquireTimeout, title, waited, why)


def wait_failed(kind: type[E], title: str, waited: float, why: str) -> E:
    """Return the error of a wait for a slot of ``title``."""
    return kind(f"no slot of {title} within {waited:g} s: {why}")


def limit_full(
    title: str,
    full: str,
    *,
    waiting: int,
    estimate: float | None = None,
    timeout: float | None = None,
) -> LimitFull:
    """Return the error of a newcomer that may not wait; ``full`` says how full the limit is.

    With ``timeout``, it is refused because it would have to wait for longer than that.
    """
    soon = "" if estimate is None else f"; a newcomer would be served in about {estimate:.3g} s"
    why = "too many are waiting" if timeout is None else f"none is expected within {timeout:g} s"
    text = f"no slot of {title}, and {why}: {full}{soon}"
    return LimitFull(text, waiting=waiting, estimate=estimate)


def occupancy(
    *, value: int, held: int, waiting: int, oldest: str = "", paused_for: float = 0.0
) -> str:
    """Say how full a limit is, to a caller that got no slot; a value of 0 means unlimited."""
    full = f"{held} of {value or 'any number'} held{oldest}, {others_waiting(waiting)}"
    return f"{paused(paused_for)}, {full}" if paused_for > 0 else full


def others_waiting(count: int) -> str:
    return f"{count} other{'' if count == 1 else 's'} waiting"


def paused(seconds: float) -> str:
    """Say that nothing is granted for that long."""
    return f"paused for another {seconds:.3g} s"


# How many holders a message names.
NAMED_HOLDERS = 3


def oldest_holders(holders: Iterable[tuple[str, int | None, str | None, float | None]]) -> str:
    """Name holders, the oldest first: `` (oldest: web3:4411 'export', 42 s)``.

    Each is a host, a pid, a label and for how many seconds it has held, as far as they are known.
    """
    named = []
    for host, pid, label, age in holders:
        what = "" if label is None else f" {label!r}"
        named.append(f"{host}:{pid}{what}" + ("" if age is None else f", {age:.0f} s"))
    return f" (oldest: {'; '.join(named)})" if named else ""


def unknown_acquisition(title: str, acquisition_id: str) -> LookupError:
    return LookupError(
        f"{acquisition_id!r} is not an acquisition of {title}, or ended too long ago to be settled"
    )


def what_is_left(left: float, rate: object, cost: int, waiting: int) -> str:
    """What is left of a rate, for somebody who didn't get a cost of it."""
    return f"{left:.1f} left of {rate}, and {cost} needed, {others_waiting(waiting)}"


def cost_above_burst(title: str, cost: int, burst: int) -> ValueError:
    return ValueError(
        f"a cost of {cost} requested of {title}, which has a burst of {burst}: that can never be"
        f" granted"
    )


def too_many_slots(title: str, slots: int, value: int) -> ValueError:
    return ValueError(
        f"{slots} slots requested of {title}, which has {value}: that can never be granted"
    )


def value_conflict(
    name: str | None, given: int | None, *, value: int, held: int, waiting: int
) -> ValueConflict:
    return ValueConflict(
        f"{name!r} is in use with {value} slots, not {given}: {held} held, {waiting} waiting;"
        f" resize() changes the value of a semaphore in use",
        value=value,
    )


def rules_conflict(
    name: str | None, given: Adaptive | None, known: Adaptive | None, value: int
) -> ValueConflict:
    """Return the error of an adaptive semaphore and a fixed one, or one with other rules."""
    has = f"adapts ({known.rules})" if known is not None else f"is in use with {value} slots"
    wants = f"other rules ({given.rules})" if given is not None else "a fixed value"
    rules = None if known is None else known.rules
    return ValueConflict(f"{name!r} {has}, but this instance has {wants}", value=value, rules=rules)


# For code that requests a slot while it interrupts slotwise.
INTERRUPTED = "a signal handler or finalizer that interrupted slotwise requested a slot"


# ---------------------------------------------------------------------- losing

KICKED = "it was kicked"


def ttl_ended(ttl: float | None) -> str:
    """Say why `lost` was set at the end of a ttl."""
    return f"its ttl of {ttl:g} s ended"


def cancelled_after_ttl(acquisition_id: str, ttl: float | None) -> str:
    """Return the message of the CancelledError for a task whose ttl has ended."""
    return f"the ttl of {acquisition_id} ended after {ttl:g} s"


# --------------------------------------------------------------------- closing


def closed_error(
    subject: str,
    closure: Closure | None = None,
    make: Callable[..., SemaphoreClosed] = SemaphoreClosed,
) -> SemaphoreClosed:
    """Return the error of a closed limit. ``subject`` is like ``'api' is``."""
    if closure is None:
        return make(f"{subject} closed")
    why = "" if closure.reason is None else f": {closure.reason}"
    return make(f"{subject} closed everywhere{why}", reason=closure.reason)


def fixed_value(title: str) -> TypeError:
    """Return the error of freezing a value that doesn't adapt, or of asking how it moved."""
    return TypeError(f"{title} has a fixed value; see Adaptive")


# ------------------------------------------------------------ context managers


def context_reused(title: str) -> ContextReused:
    return ContextReused(
        f"this cm() of {title} was entered before; call cm() again for every 'with' block"
    )


def context_not_yet_entered(title: str) -> ContextReused:
    return ContextReused(f"this cm() of {title} has no acquisition: it was not entered yet")


def context_not_entered(title: str) -> ContextReused:
    return ContextReused(f"this cm() of {title} was left without being entered")


def block_not_entered(title: str) -> ContextReused:
    return ContextReused(f"this task or thread is not in a 'with' block of {title}")


def would_block_loop(call: str) -> WouldBlockLoop:
    return WouldBlockLoop(
        f"{call} would block the event loop that runs in this thread;"
        f" use its async twin, or call it in a thread of its own"
    )


def no_thread(why: str) -> BackendError:
    return BackendError(f"waiting needs a thread, and none could be started: {why}")


def needs_asyncio() -> RuntimeError:
    """Return the error of a coroutine of ours outside asyncio: most likely under trio."""
    return RuntimeError(
        "this call needs a running asyncio event loop, and this thread has none."
        " Under trio, call the _sync twin in a thread: trio.to_thread.run_sync(...)"
    )
