"""StagedPaths: one tier after the other, narrow to wide, each a Semaphore.

The order of the document: a request that waits for a wide tier holds its slots of the
narrower ones meanwhile. If it fails or is cancelled at one stage, the earlier ones are
released; slots are released in the order in which they were acquired. The semaphore of
a tier decides who gets a slot of it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar
from weakref import WeakSet

from slotwise._core import log
from slotwise._core.closing import Closure, Generations
from slotwise._core.limit import EXIT_LIMIT
from slotwise._core.messages import closed_error
from slotwise._core.paths import (
    KeyStats,
    Needs,
    NodeStats,
    Path,
    PathBackend,
    PathStats,
    TierSpec,
    TierStats,
    needs_by_name,
)
from slotwise._core.results import AcquisitionResult, Claimant
from slotwise._core.semaphore import Semaphore
from slotwise._wait import clock
from slotwise._wait.loop_thread import LoopThread
from slotwise.errors import AcquireTimeout, BackendError, SemaphoreClosed
from slotwise.tiers._stages import Stage, StageKey

T = TypeVar("T")

# Makes the semaphore of a stage: its name, or None for a private one, and its value.
Make = Callable[[str | None, int], Semaphore]

Held = list[tuple[Semaphore, AcquisitionResult]]
Holding = tuple[Held, list[StageKey], Claimant]

logger = logging.getLogger("slotwise.tiers")

# How one stage is released.
Release = Callable[[Semaphore, AcquisitionResult], Awaitable[bool]]
ReleaseSync = Callable[[Semaphore, AcquisitionResult], bool]


# The objects that this process has made, by scope and name.
_generations = Generations()
_objects: WeakSet[StagedPaths] = WeakSet()


# The shortest wait for a stage once the timeout is used up, in seconds.
_LEAST = 0.001
# How long giving back waits for a server then: a timeout is kept to within 0.2 s.
_TOO_LATE = 0.03


class StagedPaths(PathBackend):
    """A `PathBackend` that takes its tiers one by one.

    ``make`` makes the semaphores; tiers without a limit have none, and their
    statistics count this object alone.
    """

    def __init__(
        self, tiers: Sequence[TierSpec], make: Make, *, name: str | None, scope: Hashable = None
    ) -> None:
        """``scope`` is where the name is one: objects of another scope share nothing."""
        self._closing_key = (scope, name) if name is not None else object()
        self._generation = _generations.current(self._closing_key)
        _objects.add(self)
        self._name = name
        self._stages = [Stage(spec, make, name) for spec in tiers]
        self._prefix = f"s{secrets.token_hex(4)}-"
        self._numbers = itertools.count(1)
        self._holding: dict[str, Holding] = {}
        self._waiting: dict[object, Claimant] = {}  # what they will hold, in order of arrival
        self._waits: set[asyncio.Task[AcquisitionResult]] = set()
        # Threads wait in a loop of ours, where their waits can be ended by a close.
        self._loop_thread = LoopThread("slotwise-staged")

    # ---------------------------------------------------------------- taking

    async def acquire(
        self,
        path: Path,
        *,
        timeout: float | None,
        label: str | None = None,
        needs: Needs | None = None,
    ) -> AcquisitionResult:
        until = None if timeout is None else clock.now() + timeout
        claimant = self._claimant(path, label, needs)
        self._waiting[claimant.acquisition_id] = claimant
        visited: list[StageKey] = []
        held: Held = []
        try:
            slots = needs or (1,) * len(path)
            for stage, key, need in zip(self._stages, path, slots, strict=True):
                visited.append(stage.visit(key))
                semaphore = visited[-1].semaphore
                if semaphore is None:
                    self._refuse_if_closed()
                    continue
                left = _left(until, timeout)
                try:
                    held.append((semaphore, await self._wait(semaphore, need, left, label)))
                except BackendError:
                    raise  # also if it is a time-out: nobody knows whether the tier was full
                except AcquireTimeout as too_late:
                    words = stage.words(key)
                    raise AcquireTimeout(f"{words}, {timeout:g} s in total: {too_late}") from None
        except BaseException:
            self._waiting.pop(claimant.acquisition_id, None)
            # After a timeout there is no time left to wait for a server.
            patience = EXIT_LIMIT if until is None or clock.now() < until else _TOO_LATE
            try:
                await _give(held, _exit(patience))
            finally:
                _leave(visited)
            raise
        for visit in visited:
            visit.hold()
        return self._result(held, visited, claimant)

    async def _wait(
        self, semaphore: Semaphore, slots: int, timeout: float | None, label: str | None
    ) -> AcquisitionResult:
        """Acquire, if it has to wait in a task of its own, which a close can cancel."""
        self._refuse_if_closed()
        try:
            return await self._wait_for(semaphore, slots, timeout, label)
        except SemaphoreClosed as closed:
            if self._generation.closed:
                raise self._closed_error() from None
            raise SemaphoreClosed(
                f"{self._closed_error()}: {closed}", reason=closed.reason
            ) from None

    async def _wait_for(
        self, semaphore: Semaphore, slots: int, timeout: float | None, label: str | None
    ) -> AcquisitionResult:
        # Where there is a server to ask, asking twice takes twice as long.
        if timeout != 0 and not semaphore._has_a_server:
            acquired = await semaphore.try_acquire(slots, label=label)
            if acquired is not None:
                return acquired
        waiting = asyncio.ensure_future(semaphore.acquire(slots, timeout=timeout, label=label))
        self._waits.add(waiting)
        if self._generation.closed:  # by another thread, which may not have seen it
            waiting.cancel()
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                await semaphore.release(waiting.result())
            task = asyncio.current_task()
            if self._generation.closed and (task is None or not task.cancelling()):
                raise self._closed_error() from None
            raise
        finally:
            self._waits.discard(waiting)

    def acquire_sync(
        self,
        path: Path,
        *,
        timeout: float | None,
        label: str | None = None,
        needs: Needs | None = None,
    ) -> AcquisitionResult:
        self._refuse_if_closed()
        taken: list[str] = []
        interrupted = False

        async def take() -> AcquisitionResult:
            acquired = await self.acquire(path, timeout=timeout, label=label, needs=needs)
            taken.append(acquired.acquisition_id)
            if interrupted:
                await give_back()
            return acquired

        async def give_back() -> None:
            for acquisition_id in taken:
                await self.release(acquisition_id)

        try:
            return self._in_loop(take())
        except Exception:
            raise  # it has cleaned up after itself
        except BaseException:
            # What came as the thread was interrupted goes back, and what still comes.
            interrupted = True
            self._loop_thread.run_soon(give_back())
            raise

    def _claimant(self, path: Path, label: str | None, needs: Needs | None) -> Claimant:
        pairs = zip(self._stages, path, strict=True)
        return Claimant(
            f"{self._prefix}{next(self._numbers)}",
            1 if needs is None else needs[-1],
            datetime.now(UTC),
            socket.gethostname(),
            os.getpid(),
            label,
            keys={stage.spec.name: key for stage, key in pairs if key is not None},
            needs=needs_by_name([stage.spec for stage in self._stages], needs),
        )

    def _result(self, held: Held, visited: list[StageKey], claimant: Claimant) -> AcquisitionResult:
        acquisition_id = claimant.acquisition_id
        result = AcquisitionResult(acquisition_id, 1)
        if held:
            widest = held[-1][1]
            result = AcquisitionResult(acquisition_id, widest.slot_number, widest.fencing_token)
            result._lost = held[0][1].lost  # the first to be granted is the first to expire
        number = result.slot_number
        holder = replace(claimant, since=datetime.now(UTC), slot_number=number)
        self._waiting.pop(acquisition_id, None)
        self._holding[acquisition_id] = held, visited, holder
        return result

    # ---------------------------------------------------------------- giving

    async def release(self, acquisition_id: str) -> bool:
        released = await self._release(acquisition_id, _release)
        self._after_release(acquisition_id, released=released)
        return released

    async def release_on_exit(self, acquisition_id: str) -> None:
        await self._release(acquisition_id, _exit(EXIT_LIMIT))

    async def _release(self, acquisition_id: str, how: Release) -> bool:
        # The pop decides: of several that release the same one, one frees the slots.
        ended = self._holding.pop(acquisition_id, None)
        if ended is None:
            return False
        held, visited, _ = ended
        try:
            return await _give(held, how) or not held
        finally:
            _leave(visited, held=True)

    def release_sync(self, acquisition_id: str) -> bool:
        released = self._release_sync(acquisition_id, _release_sync)
        self._after_release(acquisition_id, released=released)
        return released

    def _after_release(self, acquisition_id: str, *, released: bool) -> None:
        if not released:
            issued_here = any(acquisition_id.startswith(each._prefix) for each in list(_objects))
            log.released_nothing(logger, acquisition_id, self._name, issued_here=issued_here)

    def release_on_exit_sync(self, acquisition_id: str) -> None:
        until = clock.now() + EXIT_LIMIT

        def release(semaphore: Semaphore, acquired: AcquisitionResult) -> bool:
            semaphore._release_on_exit_sync(acquired, max(until - clock.now(), 0.0))
            return True

        self._release_sync(acquisition_id, release)

    def _release_sync(self, acquisition_id: str, how: ReleaseSync) -> bool:
        ended = self._holding.pop(acquisition_id, None)
        if ended is None:
            return False
        held, visited, _ = ended
        try:
            return _give_sync(held, how) or not held
        finally:
            _leave(visited, held=True)

    # ------------------------------------------------------ looking, steering

    async def stats(self) -> dict[str, TierStats]:
        found = {}
        for stage in self._stages:
            keys = {}
            for key, entry in stage.entries():
                active, waiting, value = entry.active, entry.users - entry.active, entry.value
                if entry.semaphore is not None and entry.users:
                    stats = await entry.semaphore.stats()
                    active, waiting, value = stats.acquired_slots, stats.waiting, stats.max_slots
                keys[key] = KeyStats(active, waiting, value)
            found[stage.spec.name] = stage.summary(keys)
        return found

    def stats_sync(self) -> dict[str, TierStats]:
        return self._in_loop(self.stats())

    async def stats_of(self, path: Path) -> PathStats:
        nodes = []
        closed, closure = self._generation.closed, None
        for stage, key in zip(self._stages, path, strict=True):
            entry = stage.get(key)
            if entry is None:
                nodes.append(NodeStats(0, 0, stage.value_of(key)))
            elif entry.semaphore is None:
                nodes.append(NodeStats(entry.active, entry.users - entry.active, 0))
            else:
                stats = await entry.semaphore.stats()
                nodes.append(NodeStats(stats.acquired_slots, stats.waiting, stats.max_slots))
                if stats.closed:
                    closure = Closure(stats.reason)
        return PathStats(tuple(nodes), closed, closure)

    def stats_of_sync(self, path: Path) -> PathStats:
        return self._in_loop(self.stats_of(path))

    async def holders(self) -> list[Claimant]:
        """Who holds slots that were acquired through this object."""
        return self.holders_sync()

    def holders_sync(self) -> list[Claimant]:
        return [holder for _, _, holder in list(self._holding.values())]

    async def waiters(self) -> list[Claimant]:
        """Who waits for slots through this object."""
        return self.waiters_sync()

    def waiters_sync(self) -> list[Claimant]:
        return list(self._waiting.values())

    async def kick(self, acquisition_id: str) -> bool:
        """End an acquisition that was made through this object."""

        async def kick(semaphore: Semaphore, acquired: AcquisitionResult) -> bool:
            return await semaphore.kick(acquired)

        return await self._release(acquisition_id, kick)

    def kick_sync(self, acquisition_id: str) -> bool:
        def kick(semaphore: Semaphore, acquired: AcquisitionResult) -> bool:
            return semaphore.kick_sync(acquired)

        return self._release_sync(acquisition_id, kick)

    async def resize(self, tier: str, value: int, key: str | None = None) -> None:
        for semaphore in self._stage(tier).resize(value, key):
            await semaphore.resize(value)

    def resize_sync(self, tier: str, value: int, key: str | None = None) -> None:
        for semaphore in self._stage(tier).resize(value, key):
            semaphore.resize_sync(value)

    async def close(self) -> None:
        for semaphore in self._close():
            await semaphore.close()

    def close_sync(self) -> None:
        for semaphore in self._close():
            semaphore.close_sync()

    def _close(self) -> list[Semaphore]:
        """Close all objects of the name, and end their waits: the semaphores to be closed too.

        That of a stage is used by its tiers alone.
        """
        if self._generation.closed:
            return []
        objects = [each for each in list(_objects) if each._generation is self._generation]
        _generations.close(self._closing_key)
        for each in objects:
            each._end_waits()
        entries = (entry for each in objects for stage in each._stages for entry in stage.entries())
        return [entry.semaphore for _, entry in entries if entry.semaphore is not None]

    def _end_waits(self) -> None:
        for waiting in list(self._waits):
            try:
                waiting.get_loop().call_soon_threadsafe(waiting.cancel)
            except RuntimeError:
                pass  # that loop is closed: nobody waits there any more

    async def close_everywhere(self, reason: str | None = None) -> None:
        for semaphore in self._on_every_path():
            await semaphore.close_everywhere(reason)

    def close_everywhere_sync(self, reason: str | None = None) -> None:
        for semaphore in self._on_every_path():
            semaphore.close_everywhere_sync(reason)

    async def reopen(self) -> None:
        for semaphore in self._on_every_path():
            await semaphore.reopen()

    def reopen_sync(self) -> None:
        for semaphore in self._on_every_path():
            semaphore.reopen_sync()

    def _on_every_path(self) -> list[Semaphore]:
        """The semaphores that everybody needs, of whatever keys."""
        entries = (entry for stage in self._stages for entry in stage.entries())
        found = [each.semaphore for key, each in entries if key is None]
        semaphores = [semaphore for semaphore in found if semaphore is not None]
        if not semaphores:
            raise TypeError(
                "these tiers can't be closed everywhere: they are not atomic, and none of them"
                " has a limit without keys"
            )
        return semaphores

    async def forget_idle(
        self, tier: str, older_than: float, keep_at_most: int | None = None
    ) -> int:
        return self.forget_idle_sync(tier, older_than, keep_at_most)

    def forget_idle_sync(
        self, tier: str, older_than: float, keep_at_most: int | None = None
    ) -> int:
        return self._stage(tier).forget_idle(clock.now() - older_than, keep_at_most)

    def _stage(self, tier: str) -> Stage:
        return next(stage for stage in self._stages if stage.spec.name == tier)

    def _refuse_if_closed(self) -> None:
        if self._generation.closed:
            raise self._closed_error()

    def _closed_error(self) -> SemaphoreClosed:
        names = ", ".join(stage.spec.name for stage in self._stages)
        return closed_error(f"the tiers {names} are")

    def _in_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop_thread.run(coroutine)


def _leave(visited: list[StageKey], *, held: bool = False) -> None:
    for entry in visited:
        entry.leave(held)


def _left(until: float | None, timeout: float | None) -> float | None:
    """What is left of a timeout; 0, which does not wait, only if it was 0."""
    if until is None or not timeout:
        return timeout
    return max(until - clock.now(), _LEAST)


def _exit(seconds: float) -> Release:
    """Releases that don't raise if the server is away, and take ``seconds`` in total."""
    until = clock.now() + seconds

    async def release(semaphore: Semaphore, acquired: AcquisitionResult) -> bool:
        await semaphore._release_on_exit(acquired, max(until - clock.now(), 0.0))
        return True

    return release


async def _release(semaphore: Semaphore, acquired: AcquisitionResult) -> bool:
    return await semaphore.release(acquired)


def _release_sync(semaphore: Semaphore, acquired: AcquisitionResult) -> bool:
    return semaphore.release_sync(acquired)


async def _give(held: Held, release: Release) -> bool:
    """Release all, in the order in which they were acquired, whatever happens on the way."""
    if not held:
        return False
    (semaphore, acquired), *others = held
    try:
        freed = await release(semaphore, acquired)
    finally:
        freed_others = await _give(others, release)
    return freed or freed_others


def _give_sync(held: Held, release: ReleaseSync) -> bool:
    if not held:
        return False
    (semaphore, acquired), *others = held
    try:
        freed = release(semaphore, acquired)
    finally:
        freed_others = _give_sync(others, release)
    return freed or freed_others
