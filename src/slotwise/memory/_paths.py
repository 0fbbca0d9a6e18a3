"""MemoryPaths: tiers of this process, taken all at one instant.

It waits; who gets what is decided by the ledger in the tracker.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, cast
from weakref import WeakValueDictionary

from slotwise._core import events
from slotwise._core.adaptive import Change, Outcome
from slotwise._core.closing import Closure
from slotwise._core.control import Verb, Where
from slotwise._core.messages import unknown_acquisition
from slotwise._core.outcomes import Outcomes
from slotwise._core.overload import Overload
from slotwise._core.path_backend import PathBackend, Timeout
from slotwise._core.paths import (
    Needs,
    Path,
    PathStats,
    TierSpec,
    TierStats,
    check_costs,
    options_of,
    specs_in_use,
    tiers_conflict,
    weight_for,
)
from slotwise._core.results import AcquisitionResult, Claimant, acquisition_id_of
from slotwise._ledger.idle_nodes import forget_idle
from slotwise._ledger.tier_nodes import ValueUnknown
from slotwise._wait import clock
from slotwise._wait.deliveries import deliver_posted
from slotwise._wait.section import exclusive
from slotwise._wait.wakers import Waker
from slotwise.errors import SemaphoreClosed
from slotwise.memory import _inspect, _log
from slotwise.memory._ids import id_of, key_of, next_key
from slotwise.memory._path_acquisition import MemoryPathAcquisition
from slotwise.memory._path_tracker import PathTracker
from slotwise.memory._unfilled import unfilled
from slotwise.memory._waiting import Waiting, running_task

# How many idle keys are forgotten in one go, so that nobody waits long for the lock.
_AT_ONCE = 1000

_NO_LANE = PathTracker((), None)
_NO_LANE.attention = True

# Those with a name, as long as somebody has an object of it.
_named: WeakValueDictionary[str, PathTracker] = WeakValueDictionary()
# Names that are closed everywhere, which here means in this process, for its whole life.
_closures: dict[str, Closure] = {}


class MemoryPaths(Waiting[MemoryPathAcquisition], PathBackend):
    """Tiers for the tasks and threads of this process; see `PathBackend`.

    Objects of one name share their slots, and must agree about the tiers.

    Args:
        tiers: narrow to wide.
        name: the name that objects share; None makes private tiers.
        ttl: the longest hold in seconds; then the slots are freed, whoever has them.
        cancel_task_after_ttl: also cancel the task that took the slots.
        max_idle_keys: keep at most this many idle keys of each keyed tier, those used last; None
            keeps all until `forget_idle` forgets them.
        overload: which newcomers it refuses at once.
        closed_error: makes what is raised once it is closed.
    """

    __slots__ = (
        "__weakref__",
        "_cancel_task_after_ttl",
        "_lane",
        "_options",
        "_overload",
        "_reported_name",
        "_tracker",
        "_ttl",
    )

    _does_io = False
    scope = "memory"

    _tracker: PathTracker

    _reported_name: str | None  # set only where it isn't the tracker's

    @property
    def reported_name(self) -> str | None:
        return getattr(self, "_reported_name", self._tracker.name)

    def __init__(
        self,
        tiers: Sequence[TierSpec],
        *,
        name: str | None = None,
        ttl: float | None = None,
        cancel_task_after_ttl: bool = False,
        max_idle_keys: int | None = None,
        overload: Overload | None = None,
        closed_error: Callable[..., SemaphoreClosed] = SemaphoreClosed,
    ) -> None:
        super().__init__(tiers, closed_error)
        self._ttl = ttl
        self._cancel_task_after_ttl = cancel_task_after_ttl
        self._overload = overload
        self._options = options_of(tiers)  # of adaptive ones
        self._tracker = exclusive(_tracker_for, tiers, name)
        # Whose quick lane is used; with a ttl, nobody's.
        self._lane = self._tracker if ttl is None else _NO_LANE
        if overload is not None and overload.sheds:
            exclusive(self._tracker.time_all_holds)
        if max_idle_keys is not None:
            self._tracker.bound_idle(max_idle_keys)

    # ---------------------------------------------------------------- taking

    def cm(
        self,
        path: Path,
        timeout: float | None = None,
        label: str | None = None,
        needs: Needs | None = None,
    ) -> MemoryPathAcquisition:
        """Return a context manager for one acquisition."""
        acquisition: MemoryPathAcquisition = MemoryPathAcquisition()
        acquisition.key = None
        acquisition.paths = self
        acquisition.path = path
        acquisition.timeout = timeout
        acquisition.ttl = self._ttl
        acquisition.needs = needs
        if label is not None:
            acquisition.label = label
        if needs is not None:
            acquisition.ranges = ()
        options = self._options
        acquisition._outcomes = None if options is None else Outcomes(options)
        return acquisition

    async def acquire(
        self, path: Path, timeout: Timeout, label: str | None = None, needs: Needs | None = None
    ) -> AcquisitionResult:
        acquisition = self.cm(path, timeout, label, needs)
        acquisition.key = next_key()
        if not acquisition.take():
            await acquisition.wait()
        return acquisition

    def _acquire(self, acquisition: MemoryPathAcquisition) -> Coroutine[Any, Any, None]:
        """Get what was not simply free, waiting if need be."""
        # Not a coroutine of its own: each that waits would be one more for the garbage collector.
        if self._cancel_task_after_ttl and acquisition.ttl is not None:
            acquisition.task = running_task()
        return self._acquire_and_tell(acquisition) if events.hooks else self._get(acquisition)

    async def _acquire_and_tell(self, acquisition: MemoryPathAcquisition) -> None:
        """`_acquire` while somebody listens to events."""
        acquisition_id = acquisition.acquisition_id
        self._tell_requested(acquisition_id, acquisition.needs, clock.now(), acquisition.path)
        try:
            await self._get(acquisition)
        except BaseException as error:
            _log.refused(acquisition, error)
            raise
        events.acquired(acquisition_id, clock.now())

    def _request(self, claim: MemoryPathAcquisition, make_waker: Callable[[], Waker]) -> bool:
        tracker = self._tracker
        if tracker.queue.fair is not None:
            claim.key_weight = weight_for(self._specs, claim.path)
        while True:
            try:
                return super()._request(claim, make_waker)
            except ValueUnknown as unknown:  # nothing is taken yet
                # The user's function may do anything, so it is not called in the section.
                value = self._specs[unknown.tier].ask(cast("str", unknown.key))
                exclusive(tracker.learn, unknown.tier, unknown.key, value, clock.now())

    # ---------------------------------------------------------------- giving

    async def release(
        self, acquisition_id: str | AcquisitionResult, *, outcome: Outcome | None = None
    ) -> bool:
        acquisition_id = acquisition_id_of(acquisition_id)
        key = key_of(acquisition_id)
        if key is None:
            _log.unknown_id(acquisition_id, self.reported_name)
            return False
        acquisition = self._tracker.holders.get(key)
        if acquisition is None:
            self._tracker.keep_task(key)
            return False
        acquisition._state_outcome(outcome)
        return acquisition.give()

    # ------------------------------------------------------ looking, steering

    async def stats(self) -> dict[str, TierStats]:
        return self._tracker.stats()

    async def stats_of(self, path: Path) -> PathStats:
        return exclusive(self._tracker.stats_of, path)

    async def estimate(self, path: Path, needs: Needs | None = None) -> float | None:
        return exclusive(self._tracker.estimate, path, needs)

    async def holders(self) -> list[Claimant]:
        return _inspect.holders_of_paths(self._tracker)

    async def waiters(self) -> list[Claimant]:
        return _inspect.waiters_for_paths(self._tracker)

    async def kick(self, acquisition_id: str) -> bool:
        acquisition = self._tracker.holders.get(key_of(acquisition_id))
        if acquisition is None:
            return False
        acquisition.ignored()
        if not acquisition.end():
            return False
        self._tracker.tell_kicked(acquisition)
        return True

    def check_costs(self, costs: Mapping[str, int]) -> None:
        check_costs(self._specs, costs, self._title)

    def charge(self, key: int, costs: Mapping[str, int]) -> None:
        """Correct what an acquisition has taken of rates."""
        tracker = self._tracker
        by_index = {self._indexes[name]: cost for name, cost in costs.items()}
        try:
            tracker.change(tracker.correct, key, by_index)
        except LookupError:
            raise unknown_acquisition(self._title, id_of(key)) from None

    async def changes(self, tier: str, key: str | None = None) -> list[Change]:
        return exclusive(self._tracker.changes_of, self._indexes[tier], key)

    async def _apply(self, verb: Verb, where: Where, *args: Any) -> Any:
        if verb == "settle":
            acquisition_id, costs = args
            self.check_costs(costs)
            key = key_of(acquisition_id)
            if key is None:
                raise unknown_acquisition(self._title, acquisition_id)
            self.charge(key, costs)
            return None
        try:
            return exclusive(self._apply_here, verb, where, args)
        finally:
            deliver_posted()

    def _apply_here(self, verb: Verb, where: Where, args: Sequence[Any]) -> Any:
        if verb == "close_everywhere":
            return self._suspend(Closure(args[0]))
        if verb == "reopen":
            return self._resume()
        tracker, (tier, key) = self._tracker, where
        if verb != "refill" and not tracker.is_open():
            raise self.closed_error()
        return getattr(tracker, f"apply_{verb}")(self._indexes[cast("str", tier)], key, *args)

    async def close(self) -> None:
        exclusive(self._tracker.end)
        deliver_posted()

    def _suspend(self, closure: Closure) -> None:
        tracker = self._current()
        if tracker.name is not None:
            _closures[tracker.name] = closure
        tracker.suspend(closure)

    def _resume(self) -> None:
        tracker = self._current()
        if tracker.name is not None:
            _closures.pop(tracker.name, None)
        tracker.resume()

    def _current(self) -> PathTracker:
        """Return the tracker that the name has now, *in the section*; it may be a later one."""
        name = self._tracker.name
        return self._tracker if name is None else _named.get(name, self._tracker)

    def closed_error(self) -> SemaphoreClosed:
        tracker = self._tracker
        return self._closed_error(None if tracker.ended else tracker.closure)

    def forget_idle(self, tier: str, older_than: float, keep_at_most: int | None = None) -> int:
        index, forgotten, more = self._indexes[tier], 0, True
        while more:
            now = clock.now()
            some, more = exclusive(
                *(forget_idle, self._tracker),
                *(index, now, older_than, keep_at_most, _AT_ONCE),
            )
            forgotten += some
        return forgotten


def _tracker_for(tiers: Sequence[TierSpec], name: str | None) -> PathTracker:
    """Return the tracker behind a name, *in the section*, or a new one."""
    if name is None:
        return PathTracker(tiers, None)
    now = clock.now()
    for other in [key for key, each in unfilled.items() if each.is_full(now) and not each.paused]:
        del unfilled[other]
    tracker = _named.get(name)
    if tracker is None or tracker.ended:
        predecessor = None if tracker is None else tracker.last_held
        _named[name] = tracker = PathTracker(tiers, name, predecessor)
        if name in _closures:
            tracker.suspend(_closures[name])
    elif tracker.specs != tuple(tiers):
        used = specs_in_use(tracker.specs, [tier.value for tier in tracker.tiers])
        if len(used) != len(tiers) or not all(
            own in pair for own, *pair in zip(tiers, used, tracker.specs, strict=True)
        ):
            raise tiers_conflict(name, used, tiers)
    return tracker
