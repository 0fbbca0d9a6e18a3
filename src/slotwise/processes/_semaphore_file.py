"""Room: this process's side of one semaphore; every verb, as one change of its file.

The ledger in the state decides. What is here checks who may ask at all, and
sees to it that nobody dead is in anybody's way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from slotwise._core.closing import Generation
from slotwise._ledger import NEVER
from slotwise.errors import BackendError
from slotwise.processes import _messages
from slotwise.processes._acquisition import MakeWaker, ProcessAcquisition
from slotwise.processes._file_changes import PATIENCE, TIMERS_PATIENCE, FileChanges
from slotwise.processes._local_claims import AfterUnlock
from slotwise.processes._messages import Busy, Interrupted, Missing, Retired
from slotwise.processes._state import State

T = TypeVar("T")


class SemaphoreFile(FileChanges):
    """What all instances of one name share in this process."""

    # ------------------------------------------------------------------ asking

    def ask(
        self,
        acquisition: ProcessAcquisition,
        declared: int | None,
        make_waker: MakeWaker | None,
        patience: float | None,
    ) -> bool:
        """Ask for slots; True if they were granted, False if it waits, or would have to.

        ``make_waker`` makes what it sleeps on; None does not wait.
        """
        if not self._journal.is_in_place():
            # Slots of a file that nobody else finds would be those of a second semaphore.
            self._journal.sound = False
        return self.change(self._ask, declared, patience, acquisition, declared, make_waker)

    def _ask(
        self,
        deeds: AfterUnlock,
        acquisition: ProcessAcquisition,
        declared: int | None,
        make_waker: MakeWaker | None,
    ) -> bool:
        state = self.known()
        slots = acquisition.slots
        if not self._free_for(state, slots, declared):
            self.bury_the_dead(deeds)
            if make_waker is None and not self._free_for(state, slots, declared):
                self._admit(state, acquisition, declared)
                return False
        self._admit(state, acquisition, declared)
        timeout = acquisition.timeout
        if make_waker is not None and timeout is not None:
            acquisition.wait_until = deeds.now + timeout
        acquisition_id = acquisition.acquisition_id
        acquisition.asked = True
        self.members.all[acquisition_id] = acquisition
        try:
            self.write(
                *(deeds, "ask", acquisition_id, slots, acquisition.ttl, acquisition.wait_until),
                *(declared, self.process.pid, acquisition.label),
            )
        except BaseException:
            if not acquisition.holds:
                self.members.all.pop(acquisition_id, None)
            raise
        if not acquisition.holds and make_waker is not None:
            acquisition.waker = make_waker()
            self.members.waiting += 1
            self.process.post.expect(state.owners)
        return acquisition.holds

    @staticmethod
    def _free_for(state: State, slots: int, declared: int | None) -> bool:
        if declared != state.value and not state.accepts(declared):
            return state.idle
        return not state.waiting and state.in_use + slots <= state.value

    def _admit(self, state: State, acquisition: ProcessAcquisition, declared: int | None) -> None:
        """Raise if it will never be granted."""
        if not acquisition.generation.admits(self.members.all.__contains__):
            raise _messages.closed(self.name)
        if state.closed:
            raise _messages.closed(self.name, state.closure)
        slots = acquisition.slots
        accepted = declared == state.value or state.accepts(declared)
        if not accepted and not state.idle:
            raise _messages.conflict(self.name, declared, state)
        value = state.value if accepted or declared is None else declared
        if slots > value:
            raise _messages.too_many(self.name, slots, value)

    # ------------------------------------------------------------------ giving

    def release(self, acquisition_id: str, patience: float | None = PATIENCE) -> bool:
        """End a hold; False if it had ended before."""
        try:
            return self.change(self._release, None, patience, "release", acquisition_id)
        except Interrupted:
            # In the middle of a change, by this very thread: it is done right after it.
            self._orphans.append(acquisition_id)
            return acquisition_id in self.members.all
        except Missing:
            return False
        except (BackendError, Busy, Retired):
            raise
        except BaseException:  # a signal handler raised: it is given back all the same
            acquisition = self.members.all.get(acquisition_id)
            if acquisition is not None and acquisition.holds:
                self.members.all.pop(acquisition_id, None)  # it is no loss
                self.withdraw(acquisition_id)
            raise

    def kick(self, acquisition_id: str, patience: float | None = PATIENCE) -> bool:
        """End somebody's hold; False if it had ended before."""
        try:
            return self.change(self._release, None, patience, "kick", acquisition_id)
        except Missing:
            return False

    def _release(self, deeds: AfterUnlock, verb: str, acquisition_id: str) -> bool:
        if acquisition_id not in self.known().holders:
            return False
        if verb == "kick":
            self.write(deeds, verb, acquisition_id)
            return True
        acquisition = self.members.all.get(acquisition_id)
        try:
            self.members.all.pop(acquisition_id, None)  # it is no loss
            self.write(deeds, verb, acquisition_id)
        except BaseException:
            if acquisition is not None:
                self.members.all[acquisition_id] = acquisition
            raise
        return True

    # -------------------------------------------------------- looking, steering

    def look(
        self,
        see: Callable[[State], T],
        value: int | None,
        patience: float | None = PATIENCE,
    ) -> T:
        """What ``see`` sees when all who are dead, or whose time is up, are gone."""

        def work(deeds: AfterUnlock) -> T:
            self.bury_the_dead(deeds)
            return see(self.known())

        return self.change(work, value, patience)

    def resize(
        self,
        value: int,
        declared: int | None,
        generation: Generation,
        patience: float | None = PATIENCE,
    ) -> None:
        def work(deeds: AfterUnlock) -> None:
            state = self.known()
            if generation.closed or state.closed:
                raise _messages.closed(self.name, None if generation.closed else state.closure)
            self.write(deeds, "resize", value, declared)

        self.change(work, declared, patience)

    def close_everywhere(
        self, reason: str | None, declared: int | None, patience: float | None = PATIENCE
    ) -> None:
        """Refuse all who wait or come, in whatever process, until `reopen`."""

        def work(deeds: AfterUnlock) -> None:
            self.bury_the_dead(deeds)
            self.write(deeds, "close everywhere", reason)

        self.change(work, declared, patience)

    def reopen(self, patience: float | None = PATIENCE) -> None:
        def work(deeds: AfterUnlock) -> None:
            if self.known().closed:
                self.write(deeds, "reopen")

        try:
            self.change(work, None, patience)
        except Missing:
            pass  # there is nothing that could be closed

    def lock_holder(self) -> int | None:
        """The pid of the process that has the file's lock."""
        with self._mutex:
            journal = self._journal
            if self.retired or (journal.fd < 0 and not journal.open(create=False)):
                return None
            return journal.lock_holder()

    # ------------------------------------------------------------- looking after

    def strangers(self) -> dict[str, int]:
        """The other processes that one of us may have to wait for, and their pids."""
        with self._mutex:
            state = self._journal.state
            owners = {} if state is None else state.owners
            return {who: pid for who, (_, pid) in owners.items() if who != self.process.owner}

    def look_after(self, thorough: bool) -> bool:
        """See, while one of us waits, whether anything has changed; False if somebody had the lock.

        ``thorough`` also looks for the dead.
        """
        try:
            if thorough or self._is_displaced():
                self.change(self.bury_the_dead, None, TIMERS_PATIENCE)
            else:
                self.hear()
        except (Missing, Retired):
            pass
        except Busy:
            return False
        return True

    def _is_displaced(self) -> bool:
        with self._mutex:
            if self.retired or self._journal.is_in_place():
                return False
            self._journal.sound = False
            return True

    def touch(self) -> None:
        """Show those who remove old files that this one is in use."""
        with self._mutex:
            if self.members.all and self._journal.fd >= 0:
                os.utime(self._journal.fd)

    def age(self) -> float:
        """The seconds since anybody changed the semaphore; `NEVER` if this process has not yet."""
        with self._mutex:
            fd = self._journal.fd
            return NEVER if fd < 0 else time.time() - os.fstat(fd).st_mtime

    def sweep(self, *, forgotten: bool = False) -> None:
        """Remove the file if nobody uses it, and it has nothing to remember, or is forgotten."""
        self.change(
            *(self._remove_if, None, 0.0),
            lambda state: state.idle and (forgotten or not state.remembers),
        )

    def discard(self, *, at_exit: bool) -> None:
        """Remove the file if nobody uses it, whatever it remembers; who exits uses nothing."""
        own = {self.process.owner} if at_exit else set()
        self.change(self._remove_if, None, 0.0, lambda state: state.owners.keys() <= own)

    def _remove_if(self, deeds: AfterUnlock, unused: Callable[[State], bool]) -> None:
        self.bury_the_dead(deeds)
        if unused(self.known()):
            self._journal.remove()
