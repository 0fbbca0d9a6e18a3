"""Acquisition: one claim of this process, from the request to its end, and who sleeps for it.

It is also what the caller gets. Nothing here decides anything: the room tells
it what has become of it, and it tells its task or thread.
"""

from __future__ import annotations

import _thread
import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from slotwise._core.closing import Generation
from slotwise._core.results import AcquisitionResult

if TYPE_CHECKING:
    from slotwise.processes._semaphore_file import SemaphoreFile
    from slotwise.processes._state import Entry

Waker: TypeAlias = "asyncio.Future[None] | _thread.LockType"


class ProcessAcquisition(AcquisitionResult):
    """A request for slots, then a hold on them."""

    __slots__ = (
        "asked",
        "asked_at",
        "condemned",
        "failure",
        "generation",
        "holds",
        "label",
        "room",
        "since",
        "slots",
        "task",
        "timeout",
        "ttl",
        "wait_until",
        "waker",
    )

    def __init__(
        self,
        acquisition_id: str,
        room: SemaphoreFile,
        slots: int,
        ttl: float | None,
        timeout: float | None,
        label: str | None,
        asked_at: float,
        generation: Generation,
    ) -> None:
        self._acquisition_id = acquisition_id
        self._slot_number = 0
        self.room = room
        self.slots = slots
        self.ttl = ttl
        self.timeout = timeout
        self.label = label
        self.asked_at = asked_at
        self.generation = generation  # of the instance that it was asked of
        self.asked = False  # whether the file may know of it
        self.since = 0.0
        self.holds = False
        self.waker: Waker | None = None  # set once it waits
        self.wait_until: float | None = None
        self.failure: Exception | None = None  # why the wait ended without a grant
        self.task: asyncio.Task[Any] | None = None  # whom to cancel when the ttl ends
        self.condemned = False

    def grant(self, entry: Entry, now: float) -> None:
        self._slot_number = entry._slot_number
        self._fencing_token = entry.token
        self.since = now
        self.holds = True

    def wake(self) -> None:
        """Tell who waits that the wait is over, in whatever thread; twice does no harm."""
        waker = self.waker
        if waker is None:
            return
        if isinstance(waker, asyncio.Future):
            _Parcel(self, waker).send()
        else:
            try:
                waker.release()
            except RuntimeError:  # open already
                pass

    # -------------------------------------------------- the end of the ttl

    def condemn(self) -> None:
        """Cancel the task, unless it leaves its block or releases before that comes."""
        task = self.task
        if task is None:
            return
        self.condemned = True
        try:
            task.get_loop().call_soon_threadsafe(self._carry_out, task)
        except RuntimeError:
            self.condemned = False  # the loop is closed, and the task with it

    def _carry_out(self, task: asyncio.Task[Any]) -> None:
        if self.condemned:
            self.condemned = False
            task.cancel(f"the ttl of {self.acquisition_id} ended after {self.ttl:g} s")


class _Parcel:
    """The end of a wait on its way to a future; what nobody opens is handed on."""

    __slots__ = ("_acquisition", "_future", "_on_its_way", "_woken")

    def __init__(self, acquisition: ProcessAcquisition, future: asyncio.Future[None]) -> None:
        self._acquisition = acquisition
        self._future = future
        self._on_its_way = True
        self._woken = acquisition.room.members.woken

    def send(self) -> None:
        loop = self._future.get_loop()
        if loop is asyncio._get_running_loop() and not self._woken.under_way:
            self._open()
            return
        self._woken.send(self)
        try:
            loop.call_soon_threadsafe(self._open)
        except RuntimeError:  # that loop is closed
            self.__del__()

    def _open(self) -> None:
        self._on_its_way = False
        self._woken.arrive(self)
        if not self._future.done():  # else cancelled meanwhile, and its task withdraws
            self._woken.add(self._future)
            self._future.set_result(None)

    def __del__(self) -> None:
        if self._on_its_way:
            self._on_its_way = False
            self._woken.arrive(self)
            self._acquisition.room.withdraw(self._acquisition.acquisition_id)


def closed_door() -> _thread.LockType:
    """A waker for a plain thread: it sleeps in ``acquire``, whoever wakes it opens."""
    door = _thread.allocate_lock()
    door.acquire()
    return door


MakeWaker: TypeAlias = "Callable[[], Waker]"
