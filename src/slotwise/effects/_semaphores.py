"""The semaphores of a run: the handle that programs have, and the queue behind it.

The ledger that all drivers share decides who gets a permit. `_permits` records who was granted
which permit; what programs may ask for is in `_semaphore_effects`.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappush
from typing import TYPE_CHECKING, Any

from slotwise._core.copying import same_when_copied
from slotwise._core.messages import others_waiting
from slotwise._ledger.path_nodes import BasePathClaim, Node
from slotwise._ledger.paths import PathLedger
from slotwise.effects._permits import HeldPermits, Holdings, file, take_unseen
from slotwise.effects._tasks import Task
from slotwise.errors import AcquireTimeout

if TYPE_CHECKING:
    from slotwise.effects._program import Steps
    from slotwise.effects._scheduler import Scheduler


@same_when_copied
class Semaphore:
    """The handle of a semaphore; made by `CreateSemaphore`, valid in the run that made it."""

    __slots__ = (
        "__weakref__",
        "_ledger",
        "_left",
        "_node",
        "_outstanding",
        "_scheduler",
        "name",
        "owned",
        "permits",
    )

    name: str
    permits: int
    owned: bool
    _scheduler: Scheduler
    _ledger: PathLedger[Ticket]
    _node: Node  # the only one of the ledger
    _left: Holdings  # permits of tasks that have ended
    _outstanding: Holdings | None  # all of them; see outstanding_of

    # Between any two effects:
    #   S1  the numbers that are not free are those of the tasks and of _left
    #   S2  no permits are recorded in the ledger's holders
    #   S3  whoever has permits here has a reference to the semaphore; the scheduler has
    #       one only while _left is not empty
    #   S4  if _outstanding is a list, it has all of them, the oldest first

    def _recipe(self) -> None:
        """It is private to its run, so a copy is itself."""

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("a Semaphore is made by `yield CreateSemaphore(permits)`")

    def __repr__(self) -> str:
        return f"<Semaphore {self.name!r} permits={self.permits}>"


def make_semaphore(scheduler: Scheduler, permits: int, name: str, owned: bool) -> Semaphore:
    semaphore = object.__new__(Semaphore)
    semaphore.name = name
    semaphore.permits = permits
    semaphore.owned = owned
    semaphore._scheduler = scheduler
    semaphore._ledger = PathLedger([permits])
    semaphore._node = semaphore._ledger.node()
    semaphore._left = OrderedDict()
    semaphore._outstanding = None
    return semaphore


class Ticket(BasePathClaim):
    """A claim of permits by a task that may have to wait."""

    __slots__ = (
        *("_slot_number", "bracket", "granted", "group", "instruction", "key", "needs", "nodes"),
        *("order", "rank", "ranges", "semaphore", "steps", "task", "ticket", "timeout"),
        "ttl",
    )

    # Its numbers are filed with the task, see `_permits`.
    named = False

    task: Task[Any]
    semaphore: Semaphore

    def __init__(
        self, task: Task[Any], semaphore: Semaphore, n: int, steps: Steps[Any], instruction: int
    ) -> None:
        self.key = self.task = task  # a task waits in one place at a time
        self.needs = None if n == 1 else (n,)
        self.ttl = None
        self.semaphore = semaphore
        self.steps = steps
        self.instruction = instruction
        self.timeout: float | None = None
        self.granted = False
        self.bracket = False
        semaphore._scheduler.tickets += 1
        self.order = semaphore._scheduler.tickets

    def file(self) -> HeldPermits | None:
        """Record what was granted, and return the answer to the acquire."""
        self.granted = True
        numbers = list(self.numbers)
        holding = file(self.semaphore, self.task, numbers, self.steps, self.instruction)
        return holding if self.bracket else None

    # As a Blocker:

    def _withdraw(self, task: Task[Any]) -> None:
        semaphore = self.semaphore
        ledger = semaphore._ledger
        if self.granted:
            give(semaphore, take_unseen(task, semaphore, self.slots))
        elif ledger.waiting.get(task) is self:
            _deliver(semaphore, ledger.cancel(task, semaphore._scheduler.now()))

    def _awaited(self) -> object:
        return self.semaphore

    def time_is_up(self) -> None:
        """Handle its deadline, and those of others in the same queue that are due."""
        semaphore = self.semaphore
        _, waiters, granted = semaphore._ledger.expire(semaphore._scheduler.now())
        # The ledger's order of equal deadlines differs from run to run.
        for ticket in sorted(waiters, key=lambda ticket: ticket.order):
            semaphore._scheduler.throw(ticket.task, timeout_error(semaphore, ticket.timeout or 0))
        _deliver(semaphore, granted)


# -------------------------------------------------------------- queueing, giving


def give(semaphore: Semaphore, numbers: list[int]) -> None:
    """Release permits and wake the waiters that get them."""
    for number in numbers:
        give_number(semaphore, number)


def give_number(semaphore: Semaphore, number: int) -> None:
    ledger = semaphore._ledger
    if ledger.attention:
        _deliver(semaphore, ledger.give_number(number, semaphore._scheduler.now()))
    else:
        heappush(semaphore._node.free, number)


def _deliver(semaphore: Semaphore, granted: list[Ticket]) -> None:
    """Wake the waiters that were granted permits."""
    for ticket in granted:
        semaphore._scheduler.wake(ticket.task, ticket.file())


def queue_of(semaphore: Semaphore) -> tuple[Task[Any], ...]:
    """Return the waiters, in order."""
    return tuple(ticket.task for ticket in semaphore._ledger.waiting.values())


def timeout_error(semaphore: Semaphore, waited: float) -> AcquireTimeout:
    others = len(semaphore._ledger.waiting)
    return AcquireTimeout(
        f"no permit of {semaphore.name!r} within {waited:g} s: {semaphore._node.in_use} of"
        f" {semaphore.permits} held, {others_waiting(others)}"
    )
