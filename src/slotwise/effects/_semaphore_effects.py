"""Answer the semaphore effects: check the request, then apply the ledger's rule.

How permits are queued for is in `_semaphores`, who has them in `_permits`. Single permits that
nobody waits for are taken and released by the scheduler itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from slotwise._core.arguments import check_count, check_flag, check_name, check_seconds
from slotwise._core.paths import SEMAPHORE_PATH
from slotwise._core.redaction import redacted_repr
from slotwise.effects._effects import (
    AcquireSemaphore,
    CreateSemaphore,
    ReleaseSemaphore,
    SemaphoreInfo,
    SemaphoreState,
    TransferPermit,
    TryAcquire,
    use,
)
from slotwise.effects._errors import ForeignSemaphoreError
from slotwise.effects._permits import (
    HeldPermits,
    count,
    forget,
    hand_on,
    held_by,
    holders_of,
    outstanding_of,
    take_latest,
    take_oldest,
)
from slotwise.effects._semaphores import (
    Semaphore,
    Ticket,
    give,
    make_semaphore,
    queue_of,
    timeout_error,
)
from slotwise.effects._tasks import Task

if TYPE_CHECKING:
    from slotwise.effects._program import Steps
    from slotwise.effects._scheduler import Scheduler, TaskParked


class AcquireHere(AcquireSemaphore):
    """An acquire with the place of an outer program; for a bracket it answers the `HeldPermits`."""

    __slots__ = ("bracket", "site")

    def __init__(
        self, semaphore: Semaphore, n: int, timeout: float | None, site: tuple[Steps[Any], int]
    ) -> None:
        self.semaphore = semaphore
        self.n = n
        self.timeout = timeout
        self.site = site
        self.bracket = False
        use(self)

    @property
    def _kind(self) -> str:
        return "AcquireSemaphore"


class ReleaseHolding(ReleaseSemaphore):
    """Release what is left of one acquire."""

    __slots__ = ("holding",)

    def __init__(self, semaphore: Semaphore, n: int, holding: HeldPermits) -> None:
        self.semaphore = semaphore
        self.n = n
        self.holding = holding

    @property
    def _kind(self) -> str:
        return "ReleaseSemaphore"


def create(scheduler: Scheduler, _task: Task[Any], effect: CreateSemaphore) -> Semaphore:
    permits = check_count("permits", effect.permits)
    name = check_name(effect.name)
    owned = check_flag("owned", effect.owned)
    if name is None:
        scheduler.unnamed_semaphores += 1
        name = f"semaphore-{scheduler.unnamed_semaphores}"
    semaphore = make_semaphore(scheduler, permits, name, owned)
    if scheduler.made_semaphores is not None:
        scheduler.made_semaphores.append(semaphore)
    return semaphore


def acquire(
    scheduler: Scheduler, task: Task[Any], effect: AcquireSemaphore
) -> HeldPermits | TaskParked | None:
    semaphore = _ours(scheduler, effect.semaphore)
    n, timeout = effect.n, effect.timeout
    if isinstance(effect, AcquireHere):
        site, bracket = effect.site, effect.bracket
    else:
        site, bracket = scheduler.site_of(task), False
    n = _count(semaphore, n)
    timeout = check_seconds("timeout", timeout, zero=True, most=math.inf)
    ticket = Ticket(task, semaphore, n, *site)
    ticket.bracket = bracket
    ledger = semaphore._ledger
    if timeout == 0 or task._pending is not None:
        if ledger.try_request(ticket, SEMAPHORE_PATH, scheduler.now()):
            return ticket.file()
        scheduler.raise_pending(task)
        raise timeout_error(semaphore, 0)
    if timeout is None:
        granted = ledger.request(ticket, SEMAPHORE_PATH, scheduler.now())
    else:
        ticket.timeout = timeout
        now = scheduler.now()
        granted = ledger.request(ticket, SEMAPHORE_PATH, now, wait_until=now + timeout)
        if not granted:
            scheduler.timers.set(task, now + timeout)
    return ticket.file() if granted else scheduler.park(task, ticket)


def try_acquire(scheduler: Scheduler, task: Task[Any], effect: TryAcquire) -> bool:
    semaphore = _ours(scheduler, effect.semaphore)
    n = _count(semaphore, effect.n)
    ticket = Ticket(task, semaphore, n, *scheduler.site_of(task))
    if not semaphore._ledger.try_request(ticket, SEMAPHORE_PATH, scheduler.now()):
        return False
    ticket.file()
    return True


def release(scheduler: Scheduler, task: Task[Any], effect: ReleaseSemaphore) -> None:
    semaphore = _ours(scheduler, effect.semaphore)
    n = check_count("n", effect.n)
    held = held_by(task, semaphore)
    if n <= held:
        give(semaphore, take_latest(task, semaphore, n))
        return
    if semaphore.owned:
        left = count(semaphore._left)
        if n > held + left:
            raise RuntimeError(
                f"{_permits(n)} of {semaphore.name!r} released by {task.name!r}, which holds"
                f" {held or 'none'}{f' ({left} left by ended tasks)' if left else ''}"
            )
        others = semaphore._left
    else:
        in_use = semaphore._node.in_use
        if n > in_use:
            raise RuntimeError(
                f"{_permits(n)} of {semaphore.name!r} released by {task.name!r}, but"
                f" {in_use or 'none'} of {semaphore.permits} held"
            )
        others = outstanding_of(semaphore)
    numbers = take_latest(task, semaphore, held)
    numbers += take_oldest(semaphore, others, n - held, task)
    give(semaphore, numbers)


def release_holding(_scheduler: Scheduler, task: Task[Any], effect: ReleaseHolding) -> None:
    """End a bracket: release what it acquired, and nothing else."""
    semaphore, holding = effect.semaphore, effect.holding
    numbers, holding.numbers = holding.numbers, []
    if numbers:
        forget(semaphore, holding)
    missing = effect.n - len(numbers) - holding.handed_on
    # If other tasks have released some of its permits, the bracket releases as many others that are
    # outstanding, so that there are as many releases as acquires. If its own task did, that is a
    # mistake.
    charged = holding.charged
    if charged and charged <= semaphore._node.in_use - len(numbers):
        numbers += take_oldest(semaphore, outstanding_of(semaphore), charged, task)
        missing -= charged
    give(semaphore, numbers)
    if missing:
        by = holding.charged_by or task
        raise RuntimeError(
            f"{_permits(missing)} of {semaphore.name!r} had been released by {by.name!r}"
            f" before the end of the WithPermit of {task.name!r}"
        )


def transfer(scheduler: Scheduler, task: Task[Any], effect: TransferPermit) -> None:
    semaphore = _ours(scheduler, effect.semaphore)
    n = check_count("n", effect.n)
    taker = effect.task
    if not isinstance(taker, Task):
        raise TypeError(
            f"TransferPermit takes a task to hand the permits to, not {redacted_repr(taker)}"
        )
    scheduler.check_ours(taker)
    held = held_by(task, semaphore)
    if n > held:
        raise RuntimeError(
            f"{_permits(n)} of {semaphore.name!r} transferred by {task.name!r}, which holds"
            f" {held or 'none'}"
        )
    if taker._done:
        raise RuntimeError(f"can't transfer permits to task {taker.name!r}: it has ended")
    if taker is not task:
        hand_on(semaphore, task, taker, n)


def info(scheduler: Scheduler, _task: Task[Any], effect: SemaphoreInfo) -> SemaphoreState:
    semaphore = _ours(scheduler, effect.semaphore)
    return SemaphoreState(
        available=semaphore.permits - semaphore._node.in_use,
        permits=semaphore.permits,
        waiting=queue_of(semaphore),
        holders=holders_of(scheduler, semaphore),
    )


EFFECTS: dict[type, Callable[..., Any]] = {
    CreateSemaphore: create,
    AcquireSemaphore: acquire,
    AcquireHere: acquire,
    TryAcquire: try_acquire,
    ReleaseSemaphore: release,
    ReleaseHolding: release_holding,
    TransferPermit: transfer,
    SemaphoreInfo: info,
}


def _ours(scheduler: Scheduler, given: object) -> Semaphore:
    if type(given) is not Semaphore:
        raise TypeError(f"expected a Semaphore made by CreateSemaphore, not {redacted_repr(given)}")
    if given._scheduler is not scheduler:
        raise ForeignSemaphoreError(
            f"semaphore {given.name!r} was made in another run and can't be used in this one"
        )
    return given


def _count(semaphore: Semaphore, given: object) -> int:
    n = check_count("n", given)
    if n > semaphore.permits:
        raise ValueError(
            f"{_permits(n)} asked of {semaphore.name!r}, which has {semaphore.permits}:"
            " that can never be granted"
        )
    return n


def _permits(n: int) -> str:
    return "1 permit" if n == 1 else f"{n} permits"
