"""Semaphore: a limit with a name and a value, which can be inspected and controlled.

Code that only acquires and releases takes a `Limit` instead. Granting slots and waiting for
them is up to the drivers.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from slotwise._core.arguments import (
    UNSET,
    Shed,
    Unset,
    WaitOrReplace,
    check_count,
    check_flag,
    check_label,
    check_name,
    check_on_full,
    check_pause,
    check_seconds,
    check_timeout,
    check_value,
)
from slotwise._core.control import WHOLE
from slotwise._core.copying import Recipe
from slotwise._core.limit import AcquisitionContext, Limit
from slotwise._core.messages import closed_error
from slotwise._core.overload import overload_of
from slotwise._core.paths import SEMAPHORE_PATH, SEMAPHORE_TIER, RankedNeeds
from slotwise._core.priorities import check_priority
from slotwise._core.results import AcquisitionResult, acquisition_id_of
from slotwise._core.shared_name import SharedName
from slotwise._core.twins import Wider, twin
from slotwise.errors import SemaphoreClosed

if TYPE_CHECKING:
    from slotwise._core.adaptive import Change
    from slotwise._core.closing import Closure
    from slotwise._core.explain import Explanation
    from slotwise._core.overload import Overload
    from slotwise._core.paths import Needs
    from slotwise._core.stats import Claimant


T = TypeVar("T")

# Compared by identity, which is quick and tells them from True and 1.0.
_ONE = 1
_WAIT = "wait"
_NO_PRIORITY = 0


class Semaphore(SharedName, Limit):
    """A named limit with a queue: a path with one tier.

    Every coroutine has a twin whose name ends in ``_sync``, for plain
    threads. Slots taken by one may be released by the other, from any task,
    thread or event loop. What it was made with can be read: ``name``, ``value``,
    ``max_acquire_time``, ``ttl`` and so on.

    A copy is the object itself. What is unpickled in any process is the semaphore of the same
    name, made with the same arguments; a private one can't be pickled.
    """

    __slots__ = ("_cancel_task_after_ttl", "_max_acquire_time", "_name", "_overload", "_ttl")

    _scope: ClassVar[str]  # who shares it, as events name it

    # Whether a server keeps it: an inspection takes a round trip, and a dead process isn't seen.
    _has_a_server: ClassVar[bool] = False

    def __init__(
        self,
        name: str | None,
        max_acquire_time: float | None,
        ttl: float | None,
        cancel_task_after_ttl: bool,
        max_waiting: int | None,
        shed: Shed | None,
    ) -> None:
        super().__init__()
        self._name = check_name(name)
        self._max_acquire_time = check_seconds("max_acquire_time", max_acquire_time)
        self._ttl = check_seconds("ttl", ttl)
        self._cancel_task_after_ttl = check_flag("cancel_task_after_ttl", cancel_task_after_ttl)
        self._overload = None
        if max_waiting is not None or shed is not None:
            self._overload = overload_of(max_waiting, shed)

    _overload: Overload | None  # whom it refuses at once

    _path = SEMAPHORE_PATH

    async def _acquire_at_once(
        self,
        slots: int,
        label: str | None,
        seconds: float,  # noqa: ARG002 - for drivers with a server
    ) -> AcquisitionResult:
        """Acquire without waiting for others; a server has ``seconds`` to answer."""
        return await self.acquire(slots, timeout=0, label=label)

    _acquire_at_once_sync = twin(_acquire_at_once)

    async def _holders_within(
        self,
        at_most: float | None,  # noqa: ARG002 - for drivers that may have to wait
    ) -> list[Claimant]:
        """Like `holders`, for a caller who has no more than ``at_most`` seconds."""
        return await self.holders()

    _holders_within_sync = twin(_holders_within)

    @property
    def name(self) -> str | None:
        """The name that instances share, or None."""
        return self._name

    @property
    @abstractmethod
    def value(self) -> int:
        """How many slots there are."""

    def _fixed_value(self) -> int:
        return self.value

    @property
    def max_acquire_time(self) -> float | None:
        """The longest wait in seconds where no ``timeout`` is given; None waits forever."""
        return self._max_acquire_time

    @property
    def ttl(self) -> float | None:
        """The longest hold in seconds; None means unlimited."""
        return self._ttl

    @property
    def cancel_task_after_ttl(self) -> bool:
        """Whether the task that took a slot is cancelled when its ttl ends."""
        return self._cancel_task_after_ttl

    @property
    def max_waiting(self) -> int | None:
        """How many may wait before newcomers are refused; None for any number."""
        return None if self._overload is None else self._overload.max_waiting

    @property
    def shed(self) -> Shed | None:
        """Whether it also refuses callers whose timeout can't be met: "deadline" or None."""
        return "deadline" if self._overload is not None and self._overload.sheds else None

    def _closed_error(self, closure: Closure | None = None) -> SemaphoreClosed:
        """Return the error of a closed one, closed everywhere if there is a ``closure``."""
        return closed_error(f"{self._title} is", closure)

    def _arguments(self) -> dict[str, Any]:
        """What it was made with; drivers add the value, and what only they take."""
        return {
            "name": self._name,
            "max_acquire_time": self._max_acquire_time,
            "ttl": self._ttl,
            "cancel_task_after_ttl": self._cancel_task_after_ttl,
            "max_waiting": self.max_waiting,
            "shed": self.shed,
        }

    @property
    @abstractmethod
    def _base(self) -> type[Semaphore]:
        """The class of the driver, of which this may be a subclass."""

    def _recipe(self) -> Recipe | None:
        return None if self.name is None else Recipe(self._base, (), self._arguments())

    # ------------------------------------------------------------- acquiring
    # Drivers write the signature of `acquire` out again: calling it through another coroutine would
    # cost each acquisition. tests/contract/test_calls.py compares them.

    async def acquire(
        self,
        slots: int = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
        on_full: WaitOrReplace = "wait",
        priority: float = 0,
    ) -> AcquisitionResult:
        """Wait for ``slots`` slots, in the order of arrival; as `Limit.acquire` says.

        With ``on_full="replace"`` it doesn't wait: it kicks the oldest holder, or as many as it
        needs, and takes their slots in the same step. Waiters keep their places, and
        ``max_waiting`` doesn't apply. A ``slotwise run`` that is kicked keeps its slots until its
        command has ended; until then this waits, at the front.

        ``priority`` is a head start in seconds: the request comes before those that arrived less
        than that much earlier or, if it is negative, after those that arrive within that time.
        Nobody who has waited longer than the difference is passed.
        """
        needs = None
        if slots is not _ONE or on_full is not _WAIT or priority is not _NO_PRIORITY:
            needs = semaphore_needs(slots, on_full, priority)
        if label is not None:
            label = check_label(label)
        seconds = self._max_acquire_time if timeout is UNSET else check_timeout(timeout, None)
        return await self._backend.begin(SEMAPHORE_PATH, seconds, label, needs)

    acquire_sync = Wider(acquire, waits=True).twin

    async def try_acquire(
        self, slots: int = 1, *, label: str | None = None, priority: float = 0
    ) -> AcquisitionResult | None:
        """Take ``slots`` slots if they are free and nobody waits for them; else return None.

        With ``priority`` it may come before waiters, as in `acquire`.
        """
        needs = semaphore_needs(slots, "wait", priority)
        return await self._backend.try_acquire(SEMAPHORE_PATH, check_label(label), needs)

    try_acquire_sync = Wider(try_acquire).twin

    def cm(
        self,
        slots: int = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
        on_full: WaitOrReplace = "wait",
        priority: float = 0,
    ) -> AcquisitionContext:
        """Return a context manager for one acquisition; its arguments are those of `acquire`."""
        needs = semaphore_needs(slots, on_full, priority)
        seconds = self._max_acquire_time if timeout is UNSET else check_timeout(timeout, None)
        return self._backend.cm(SEMAPHORE_PATH, seconds, check_label(label), needs)

    hold = cm

    # ------------------------------------------------------------ inspecting

    async def estimate(self, slots: int = 1) -> float | None:
        return await self._backend.estimate(SEMAPHORE_PATH, (check_count("slots", slots),))

    async def holders(self) -> list[Claimant]:
        """Return who holds slots now, the longest first.

        In memory, blocks of ``async with semaphore:`` come last, with their slot number alone:
        they have no acquisition, and no id to kick them by. There, it is known when a slot was
        granted if it has a ttl, a label or several slots, or was waited for.
        """
        return await self._backend.holders()

    holders_sync = twin(holders)

    async def explain(
        self, acquisition_or_id: str | AcquisitionResult | None = None
    ) -> Explanation:
        """Explain why an acquisition of any process waits; None asks for a newcomer.

        It lists waiters and holders, so it costs as much as that.
        """
        from slotwise._core.explain import explain_semaphore

        if acquisition_or_id is not None:
            acquisition_id_of(acquisition_or_id)
        # Waiters first: one granted in between is then seen twice instead of missed.
        waiters, holders = await self.waiters(), await self.holders()
        stats, estimate = await self.stats(), await self.estimate()
        return explain_semaphore(self._title, acquisition_or_id, waiters, holders, stats, estimate)

    explain_sync = twin(explain)

    # ----------------------------------------------------------- controlling

    async def kick(self, acquisition_id: str | AcquisitionResult) -> bool:
        """End somebody's acquisition; False if it had ended.

        The next waiters get its slots at once, and its holder's ``lost`` is set. A
        ``slotwise run`` keeps them until it has ended its command, or for its grace. A
        request that still waits is left alone.
        """
        return await self._backend.kick(acquisition_id_of(acquisition_id))

    kick_sync = twin(kick)

    async def pause(self, seconds: float) -> None:
        await self._backend.control("pause", WHOLE, check_pause(seconds))

    async def resize(self, value: int) -> None:
        """Change the value while the semaphore is in use.

        Growing wakes waiters. After a shrink nothing is granted until what is
        held fits; waiters for more slots than are left fail with ValueError.
        """
        await self._backend.control("resize", WHOLE, check_value(value))

    resize_sync = twin(resize)

    async def changes(self) -> list[Change]:
        """Return how an adaptive value has moved, oldest first, without short probes.

        Raises:
            TypeError: the value is fixed.
        """
        return await self._backend.changes(SEMAPHORE_TIER)

    changes_sync = twin(changes)

    async def freeze(self, value: int | None = None) -> None:
        """Keep an adaptive value where it is, or at ``value``, until `thaw`.

        Raises:
            ValueError: it is outside min and max.
            TypeError: the value is fixed.
        """
        await self._backend.control("freeze", WHOLE, None if value is None else check_value(value))

    freeze_sync = twin(freeze)

    async def thaw(self) -> None:
        """Let an adaptive value move again, from where it is.

        Raises:
            TypeError: the value is fixed.
        """
        await self._backend.control("thaw")

    thaw_sync = twin(thaw)


def semaphore_needs(
    slots: int, on_full: WaitOrReplace = "wait", priority: float = 0
) -> Needs | None:
    """Return what a request needs of its tier; None, as for most, is one slot in its turn."""
    check_count("slots", slots)
    head_start, replaces = check_priority(priority), check_on_full(on_full)
    if slots == 1 and not head_start and not replaces:
        return None
    needs = RankedNeeds((slots,))
    needs.head_start, needs.replaces = head_start, replaces
    return needs
