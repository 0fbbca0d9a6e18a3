"""StagedPaths: take one tier after the other, narrow to wide, each a Semaphore.

A request that waits for a wide tier holds its slots of the
narrower ones meanwhile. If it fails or is cancelled at one stage, the earlier ones are
released; slots are released in the order in which they were acquired. The semaphore of a
tier decides who gets a slot of it, and knows who holds and who waits, in its whole scope:
the labels there say which acquisition of tiers it is (`_stage_labels`).

Each verb is written once, as a coroutine that calls the semaphores by `_stage_calls`: for threads
that calls their ``_sync`` twins, and never suspends.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from math import inf
from weakref import WeakSet, WeakValueDictionary

from slotwise._core import log, messages
from slotwise._core.adaptive import Outcome
from slotwise._core.arguments import MOST_SLOTS
from slotwise._core.closing import Closure, Generations
from slotwise._core.limit import EXIT_LIMIT, TIMEOUT_LIMIT, TRY_LIMIT
from slotwise._core.lost import Lost
from slotwise._core.path_backend import PathBackend, Timeout
from slotwise._core.paths import (
    KeyStats,
    Needs,
    NodeStats,
    Path,
    PathStats,
    TierSpec,
    TierStats,
    subject_of,
)
from slotwise._core.rates import Rate
from slotwise._core.results import AcquisitionResult, Claimant, SemaphoreStats, restored
from slotwise._core.semaphore import Semaphore
from slotwise._wait import clock
from slotwise._wait.at_once import call, run_at_once
from slotwise.errors import AcquireTimeout, BackendError, SemaphoreClosed
from slotwise.tiers._stage_calls import (
    ON_EXIT,
    A,
    HeldStages,
    call_all,
    end_all,
    look,
    look_sync,
    release_elsewhere,
)
from slotwise.tiers._stage_labels import read_claimant, write_label
from slotwise.tiers._stages import SemaphoreSource, Stage, StageKey, limit_of

logger = logging.getLogger("slotwise.tiers")

# The shortest wait for a stage once the timeout is used up, in seconds.
_LEAST = 0.001
# How long giving back waits for a server then: a timeout is kept to within 0.2 s.
_TOO_LATE = 0.03
# What that leaves for trying, all tiers together.
_TRY_LIMIT = TRY_LIMIT - _TOO_LATE


class _HeldByName(dict[str, tuple[HeldStages[AcquisitionResult], list[StageKey]]]):
    """What is held in this process under one name, by the id of the acquisition."""

    __slots__ = ("__weakref__",)


# The objects that this process has made, and what they hold, by scope and name.
_generations = Generations()
_objects: WeakSet[StagedPaths] = WeakSet()
_holdings: WeakValueDictionary[object, _HeldByName] = WeakValueDictionary()


class StagedPaths(PathBackend):
    """A `PathBackend` that takes its tiers one by one.

    The last stage has no keys, so everybody comes through it: whoever holds it holds a
    whole path, and while it is closed nobody does. If the last tier has keys, that stage
    is one more, without a limit, which statistics leave out.
    """

    def __init__(
        self,
        tiers: Sequence[TierSpec],
        source: SemaphoreSource,
        *,
        name: str | None,
        max_idle_keys: float = inf,
        closed_error: Callable[..., SemaphoreClosed] = SemaphoreClosed,
    ) -> None:
        super().__init__(tiers, closed_error)
        self._closing_key = (source.key, name) if name is not None else object()
        self._generation = _generations.current(self._closing_key)
        _objects.add(self)
        self._holding = _holdings.setdefault(self._closing_key, _HeldByName())
        self._source = source
        self._does_io = source.kind._does_io
        self.scope = source.kind._scope
        self._name = name
        self._tiers = [Stage(spec, source.make, name, max_idle_keys) for spec in tiers]
        self._stages = self._tiers
        if tiers[-1].keyed:
            everybody = TierSpec("*", 0, False)
            self._stages = [*self._tiers, Stage(everybody, source.make, name, max_idle_keys)]
        self._prefix = f"s{secrets.token_hex(6)}-"
        self._numbers = itertools.count(1)

    @property
    def reported_name(self) -> str | None:
        return self._name

    def _path(self, path: Path) -> list[tuple[Stage, str | None]]:
        return [*itertools.zip_longest(self._stages, path)]

    # ------------------------------------------------------------- acquiring

    async def acquire(
        self, path: Path, timeout: Timeout, label: str | None = None, needs: Needs | None = None
    ) -> AcquisitionResult:
        return await self._acquire(path, timeout, label, needs, sync=False)

    async def _acquire_at_once(
        self, path: Path, label: str | None, needs: Needs | None
    ) -> AcquisitionResult:
        return await self._acquire(path, 0.0, label, needs, sync=False, at_once=_TRY_LIMIT)

    def acquire_sync(
        self, path: Path, timeout: Timeout, label: str | None = None, needs: Needs | None = None
    ) -> AcquisitionResult:
        return run_at_once(self._acquire(path, timeout, label, needs, sync=True))

    def _acquire_at_once_sync(
        self, path: Path, label: str | None, needs: Needs | None
    ) -> AcquisitionResult:
        return run_at_once(self._acquire(path, 0.0, label, needs, sync=True, at_once=_TRY_LIMIT))

    async def _acquire(
        self,
        path: Path,
        timeout: float | None,
        label: str | None,
        needs: Needs | None,
        *,
        sync: bool,
        at_once: float = TIMEOUT_LIMIT,
    ) -> AcquisitionResult:
        """Acquire; with ``timeout`` 0, a server's answers may take ``at_once`` seconds in total."""
        until = None if timeout is None else clock.now() + timeout
        answers_until = clock.now() + at_once
        acquisition_id = f"{self._prefix}{next(self._numbers)}"
        stages = self._path(path)
        keys = {stage.spec.name: key for stage, key in stages if key is not None}
        written_label = write_label(label, acquisition_id, keys, needs)
        visited: list[StageKey] = []
        held: HeldStages[AcquisitionResult] = []
        try:
            for index, (stage, key) in enumerate(stages):
                slots = 1 if needs is None or index >= len(needs) else needs[index]
                visited.append(stage.visit(key))
                # After the visit: whoever closes now finds the semaphore, and closes it too.
                if self._generation.closed:
                    raise self._closed_error()
                semaphore = visited[-1].semaphore
                try:
                    if timeout == 0:
                        left = max(answers_until - clock.now(), _LEAST)
                        request = "_acquire_at_once", slots, written_label, left
                        acquired = await call(sync, semaphore, *request)
                    else:
                        options = {"timeout": _left(until, timeout), "label": written_label}
                        acquired = await call(sync, semaphore, "acquire", slots, **options)
                except BackendError as error:
                    if timeout is not None and at_once == TIMEOUT_LIMIT:  # a try has none
                        messages.restate_timeout(error, timeout)
                    raise  # even if it is a timeout: it is not known whether the tier was full
                except AcquireTimeout as too_late:
                    words = stage.words(key)
                    messages.restate_timeout(too_late, timeout or 0)
                    raise AcquireTimeout(f"{words}, {timeout:g} s in total: {too_late}") from None
                except SemaphoreClosed as closed:
                    raise self._closed_at_stage(closed) from None
                held.append((semaphore, acquired))
        except BaseException as error:
            # After a timeout or a cancellation there is no time left to wait for a server.
            is_late = until is not None and clock.now() >= until
            is_cancelled = isinstance(error, asyncio.CancelledError)
            patience = _TOO_LATE if is_late or is_cancelled else EXIT_LIMIT
            try:
                await self._end_all(held, ON_EXIT, sync=sync, seconds=patience)
            finally:
                _leave(visited)
            raise
        number, token = held[len(path) - 1][1].slot_number, held[-1][1].fencing_token
        waited = sum(acquired.waited for _, acquired in held)
        result = restored(acquisition_id, number, token, waited, self.scope)
        self._holding[acquisition_id] = held, visited
        on_loss = partial(_lose, self._holding, acquisition_id, result.lost)
        for _, acquired in held:
            acquired.lost._call_when_set(on_loss)
        return result

    # ------------------------------------------------------------- releasing

    async def release(self, acquisition_id: str, *, outcome: Outcome | None = None) -> bool:  # noqa: ARG002
        return await self._release(acquisition_id, sync=False)

    def release_sync(self, acquisition_id: str, *, outcome: Outcome | None = None) -> bool:  # noqa: ARG002
        return run_at_once(self._release(acquisition_id, sync=True))

    async def _release(self, acquisition_id: str, *, sync: bool) -> bool:
        released = await self._end(acquisition_id, "release", sync=sync)
        if not released:
            issued_here = any(acquisition_id.startswith(each._prefix) for each in list(_objects))
            log.released_nothing(logger, acquisition_id, self._name, issued_here=issued_here)
        return released

    async def kick(self, acquisition_id: str) -> bool:
        return await self._end(acquisition_id, "kick", sync=False)

    def kick_sync(self, acquisition_id: str) -> bool:
        return run_at_once(self._end(acquisition_id, "kick", sync=True))

    async def _end(self, acquisition_id: str, verb: str, *, sync: bool) -> bool:
        # The pop decides: of several that release the same one, one frees the slots.
        held, visited = self._holding.pop(acquisition_id, ([], []))
        if not visited:
            return await self._end_elsewhere(acquisition_id, verb, sync=sync)
        try:
            return await self._end_all(held, verb, sync=sync)
        finally:
            _leave(visited)

    async def _end_elsewhere(self, acquisition_id: str, verb: str, *, sync: bool) -> bool:
        """End an acquisition of another process, which has to be looked up first."""
        find_thread = self._source.find_thread

        async def find_and_end(*, sync: bool) -> bool:
            found = await self._find(acquisition_id, sync=sync)
            return await self._end_all(found, verb, sync=sync)

        if find_thread is None:
            return await find_and_end(sync=sync)
        if verb == "release":
            attempt = partial(find_and_end, sync=False)
            releasing = release_elsewhere(find_thread, attempt, self._source.cleanup_timeout)
            return find_thread().run(releasing) if sync else await releasing
        return (
            look_sync(find_thread, find_and_end) if sync else await look(find_thread, find_and_end)
        )

    async def _end_all(
        self, held: HeldStages[A], verb: str, *, sync: bool, seconds: float | None = None
    ) -> bool:
        find_thread = self._source.find_thread
        return await end_all(held, verb, sync=sync, find_thread=find_thread, seconds=seconds)

    async def _find(self, acquisition_id: str, *, sync: bool) -> HeldStages[str]:
        """Return what another process's acquisition holds; nothing unless it holds all tiers."""
        for holder in await self._holders(sync=sync):
            if holder.acquisition_id == acquisition_id:
                break
        else:
            return []
        found: HeldStages[str] = []
        semaphores = [stage.semaphore(holder.keys.get(stage.spec.name)) for stage in self._stages]
        listed = await call_all(sync, semaphores, "holders")
        for semaphore, claimants in zip(semaphores, listed, strict=True):
            for claimant in claimants:
                shown = self._read(claimant)
                if shown is not None and shown.acquisition_id == acquisition_id:
                    found.append((semaphore, claimant.acquisition_id))
        return found

    def release_on_exit(self, acquired: AcquisitionResult) -> Awaitable[object]:
        return self._release_on_exit(acquired, sync=False)

    def release_on_exit_sync(self, acquired: AcquisitionResult) -> None:
        run_at_once(self._release_on_exit(acquired, sync=True))

    async def _release_on_exit(self, acquired: AcquisitionResult, *, sync: bool) -> None:
        held, visited = self._holding.pop(acquired.acquisition_id, ([], []))
        try:
            await self._end_all(held, ON_EXIT, sync=sync, seconds=EXIT_LIMIT)
        finally:
            _leave(visited)

    # ------------------------------------------------------------ inspecting

    async def stats(self) -> dict[str, TierStats]:
        return await look(self._source.find_thread, self._stats)

    def stats_sync(self) -> dict[str, TierStats]:
        return look_sync(self._source.find_thread, self._stats)

    async def _stats(self, *, sync: bool) -> dict[str, TierStats]:
        known: dict[str, SemaphoreStats] = {}
        if self._name is not None:
            names = [str(entry.name) for stage in self._tiers for _, entry in stage.entries()]
            known = await self._list(names, sync=sync)
        found = {}
        for stage in self._tiers:
            keys = {}
            for key, entry in stage.entries():
                if entry.name is None:
                    stats = await call(sync, entry.semaphore, "stats")
                else:
                    stats = known.get(entry.name, SemaphoreStats(0, entry.value))
                value = limit_of(stats.max_slots)
                keys[key] = KeyStats(
                    stats.acquired_slots, stats.waiting, value, paused_for=stats.paused_for
                )
            found[stage.spec.name] = stage.summary(keys)
        return found

    async def stats_of(self, path: Path) -> PathStats:
        return await look(self._source.find_thread, partial(self._stats_of, path))

    def stats_of_sync(self, path: Path) -> PathStats:
        return look_sync(self._source.find_thread, partial(self._stats_of, path))

    async def _stats_of(self, path: Path, *, sync: bool) -> PathStats:
        nodes = []
        closure, whole = None, 0.0
        stages = self._path(path)
        semaphores = [stage.semaphore(key) for stage, key in stages]
        replies = await call_all(sync, semaphores, "stats")
        for (stage, _), stats in zip(stages, replies, strict=True):
            if stage in self._tiers:
                held, value = stats.acquired_slots, limit_of(stats.max_slots)
                # Nobody passes those who wait for the stage, so what is free there is theirs.
                kept = max(value - held, 0) if stats.waiting else 0
                nodes.append(
                    NodeStats(held, stats.waiting, value, kept, paused_for=stats.paused_for)
                )
            whole = max(whole, stats.paused_for)
            if stats.closed:
                closure = Closure(stats.reason)
        if not any(node.paused_for for node in nodes):  # else that is what is lacking first
            nodes[-1] = nodes[-1]._replace(paused_for=whole)
        return PathStats(tuple(nodes), self._generation.closed, closure)

    async def estimate(self, path: Path, needs: Needs | None = None) -> float | None:
        return await look(self._source.find_thread, partial(self._estimate, path, needs))

    def estimate_sync(self, path: Path, needs: Needs | None = None) -> float | None:
        return look_sync(self._source.find_thread, partial(self._estimate, path, needs))

    async def _estimate(self, path: Path, needs: Needs | None, *, sync: bool) -> float | None:
        """Add up the waits for the stages, one after the other."""
        seconds = 0.0
        for index, (stage, key) in enumerate(self._path(path)):
            slots = 1 if needs is None or index >= len(needs) else needs[index]
            wait: float | None = await call(sync, stage.semaphore(key), "estimate", slots)
            if wait is None:
                return None
            seconds += wait
        return seconds

    async def holders(self) -> list[Claimant]:
        return await look(self._source.find_thread, self._holders)

    def holders_sync(self) -> list[Claimant]:
        return look_sync(self._source.find_thread, self._holders)

    async def _holders(self, *, sync: bool) -> list[Claimant]:
        claimants = await call(sync, self._stages[-1].semaphore(None), "holders")
        return [holder for holder in map(self._read, claimants) if holder is not None]

    def _read(self, claimant: Claimant) -> Claimant | None:
        return read_claimant(claimant, self._specs)

    async def waiters(self) -> list[Claimant]:
        return await look(self._source.find_thread, self._waiters)

    def waiters_sync(self) -> list[Claimant]:
        return look_sync(self._source.find_thread, self._waiters)

    async def _waiters(self, *, sync: bool) -> list[Claimant]:
        """Return who waits, for whichever tier, in the order in which they began to wait for it."""
        waited_for = [
            (semaphore, stage)
            for semaphore, stats, stage in await self._semaphores(sync=sync)
            if stats is None or stats.waiting
        ]
        listed = await call_all(sync, [semaphore for semaphore, _ in waited_for], "waiters")
        found = [
            replace(waiter, lacks=stage.spec.name if stage in self._tiers else None)
            for claimants, (_, stage) in zip(listed, waited_for, strict=True)
            for waiter in map(self._read, claimants)
            if waiter is not None
        ]
        return sorted(found, key=lambda waiter: waiter.since or datetime.max.replace(tzinfo=UTC))

    async def _semaphores(
        self, *, sync: bool
    ) -> list[tuple[Semaphore, SemaphoreStats | None, Stage]]:
        """Return the semaphores of the scope, their statistics where known, and their stages.

        Those without keys, widest first; then those of keys that are in use or closed.
        """
        found: list[tuple[Semaphore, SemaphoreStats | None, Stage]] = [
            (stage.semaphore(None), None, stage)
            for stage in reversed(self._stages)
            if not stage.spec.keyed
        ]
        keyed = [stage for stage in self._tiers if stage.spec.keyed]
        if self._name is None:
            return found + [
                (entry.semaphore, None, stage) for stage in keyed for _, entry in stage.entries()
            ]
        listed = await self._list(None, sync=sync) if keyed else {}
        for name, stats in listed.items():
            for stage in keyed:
                key = stage.key_in(name)
                if key is not None:
                    found.append((stage.semaphore(key), stats, stage))
        return found

    async def _list(self, names: list[str] | None, *, sync: bool) -> dict[str, SemaphoreStats]:
        kind, where = self._source.kind, self._source.where
        listed: dict[str, SemaphoreStats] = await call(
            sync, kind, "get_acquired_stats", names, MOST_SLOTS, **where
        )
        return listed

    # ----------------------------------------------------------- controlling

    async def resize(self, tier: str, value: int | Rate, key: str | None = None) -> None:
        assert isinstance(value, int)
        await self._resize(tier, value, key, sync=False)

    def resize_sync(self, tier: str, value: int | Rate, key: str | None = None) -> None:
        assert isinstance(value, int)
        run_at_once(self._resize(tier, value, key, sync=True))

    async def _resize(self, tier: str, value: int, key: str | None, *, sync: bool) -> None:
        if self._generation.closed:
            raise self._closed_error()
        # The last stage is closed whenever the tiers are: those of keys that nobody uses aren't.
        last = self._stages[-1].semaphore(None)
        stats = await call(sync, last, "stats")
        if stats.closed:
            closed = messages.closed_error(f"{last._title} is", Closure(stats.reason))
            raise self._closed_at_stage(closed)
        try:
            for entry in self._stage(tier).resize(value, key):
                await call(sync, entry.semaphore, "resize", entry.value)
        except SemaphoreClosed as closed:
            raise self._closed_at_stage(closed) from closed

    async def pause(self, seconds: float, tier: str | None = None, key: str | None = None) -> None:
        await self._pause(seconds, tier, key, sync=False)

    def pause_sync(self, seconds: float, tier: str | None = None, key: str | None = None) -> None:
        run_at_once(self._pause(seconds, tier, key, sync=True))

    async def _pause(
        self, seconds: float, tier: str | None, key: str | None, *, sync: bool
    ) -> None:
        if self._generation.closed:
            raise self._closed_error()
        # The last stage has no keys.
        entry = (self._stages[-1] if tier is None else self._stage(tier)).visit(key)
        try:
            await call(sync, entry.semaphore, "pause", seconds)
        except SemaphoreClosed as closed:
            raise self._closed_at_stage(closed) from closed
        finally:
            entry.leave()

    def forget_idle_sync(
        self, tier: str, older_than: float, keep_at_most: int | None = None
    ) -> int:
        return self._stage(tier).forget_idle(clock.now() - older_than, keep_at_most)

    def _stage(self, tier: str) -> Stage:
        return self._tiers[self._indexes[tier]]

    # --------------------------------------------------------------- closing

    async def close(self) -> None:
        await self._close(sync=False)

    def close_sync(self) -> None:
        run_at_once(self._close(sync=True))

    async def _close(self, *, sync: bool) -> None:
        """Close all objects of the name, and their semaphores, which fail those who wait."""
        if self._generation.closed:
            return
        objects = [each for each in list(_objects) if each._generation is self._generation]
        _generations.close(self._closing_key)
        entries = (entry for each in objects for stage in each._stages for entry in stage.entries())
        for _, entry in entries:
            await call(sync, entry.semaphore, "close")

    async def close_everywhere(self, reason: str | None = None) -> None:
        await self._close_everywhere(reason, sync=False)

    def close_everywhere_sync(self, reason: str | None = None) -> None:
        run_at_once(self._close_everywhere(reason, sync=True))

    async def _close_everywhere(self, reason: str | None, *, sync: bool) -> None:
        # The last stage comes first. Then whoever holds a key that is not in use, and so not
        # listed, fails there and leaves, and so does everybody who waits for that key.
        for stage in reversed(self._stages):
            if not stage.spec.keyed:
                await call(sync, stage.semaphore(None), "close_everywhere", reason)
        for semaphore, *_ in await self._semaphores(sync=sync):
            await call(sync, semaphore, "close_everywhere", reason)

    async def reopen(self) -> None:
        await self._reopen(sync=False)

    def reopen_sync(self) -> None:
        run_at_once(self._reopen(sync=True))

    async def _reopen(self, *, sync: bool) -> None:
        # The last stage comes last: until then it is closed, and this can be repeated.
        for semaphore, *_ in reversed(await self._semaphores(sync=sync)):
            await call(sync, semaphore, "reopen")

    def _closed_at_stage(self, closed: SemaphoreClosed) -> SemaphoreClosed:
        """Return the error for tiers when the semaphore of one of them is closed."""
        if self._generation.closed:
            return self._closed_error()
        words = f"{subject_of(self._specs, self._name)} closed: {closed}"
        return self._make_closed_error(words, reason=closed.reason)


def _lose(holding: _HeldByName, acquisition_id: str, lost: Lost, reason: str) -> None:
    """Tell the holder that a slot of one stage was lost, and release those of the others."""
    # The pop decides: a release or a kick of all stages may be under way.
    held, visited = holding.pop(acquisition_id, ([], []))
    lost.set(reason)
    for semaphore, acquired in held:
        if not acquired.lost:
            semaphore._release_soon(acquired)
    _leave(visited)


def _leave(visited: list[StageKey]) -> None:
    for entry in visited:
        entry.leave()


def _left(until: float | None, timeout: float | None) -> float | None:
    """Return what is left of a timeout; 0, which does not wait, only if it was 0."""
    if until is None or not timeout:
        return timeout
    return max(until - clock.now(), _LEAST)
