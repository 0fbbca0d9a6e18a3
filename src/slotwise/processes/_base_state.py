"""BaseState: apply the records of a journal to a ledger.

A state is a ledger with a few more fields: `_state` has that of a semaphore, `_path_state`
that of tiers. Every process that uses the limit applies the same records in the same order
and so reaches the same state: nothing here may depend on anything but the records. It reads
no clock and no file, and doesn't know who is alive.

Processes of different releases share files. So a change of these rules, or of a ledger's,
that gives another result for the same records needs another `RULES`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from slotwise._core.adaptive import Change, Outcome
from slotwise._core.closing import Closure
from slotwise._ledger.base import BaseLedger
from slotwise._ledger.claims import NO_SLOTS
from slotwise._ledger.estimates import HoldTimes
from slotwise.errors import ValueConflict

# Verb, time by the monotonic clock, wall clock time in microseconds, and the verb's arguments.
Record: TypeAlias = "list[Any]"

# Empty, since a class can't inherit from two with slots. Not a literal, which mypy would take for
# the only attributes.
_SLOTS_OF_SUBCLASSES: tuple[str, ...] = ()


class ProcessClaim:
    """The claim of a holder or waiter in any process."""

    __slots__ = NO_SLOTS

    named: bool
    replaces: bool
    head_start: int
    key: str
    ttl: float | None
    _slot_number: int
    owner: str  # the process: the prefix of its acquisition ids
    pid: int
    label: str | None
    requested_us: int
    grace: float  # how long it keeps its slots after a kick, in seconds
    is_kicked: bool
    granted_at: float  # set when it is granted, like the next three; not in snapshots
    granted_us: int
    token: int
    expires_at: float | None

    def __init__(
        self,
        acquisition_id: str,
        wanted: Any,
        ttl: float | None,
        pid: int,
        label: str | None,
        requested_us: int,
        grace: float = 0.0,
        is_kicked: bool = False,
    ) -> None:
        self.key = acquisition_id
        self._want(wanted)
        self.ttl = ttl
        self.owner = acquisition_id.partition("-")[0]
        self.pid = pid
        self.label = label
        self.requested_us = requested_us
        self.grace = grace
        self.is_kicked = is_kicked

    @property
    @abstractmethod
    def wanted(self) -> Any:
        """What it asks for, as snapshots have it."""

    @abstractmethod
    def _want(self, wanted: Any) -> None:
        """Set what it asks for, as it is in a record or a snapshot."""

    def arguments(self) -> tuple[Any, ...]:
        """Return what `__init__` takes, for a snapshot."""
        return (
            *(self.key, self.wanted, self.ttl, self.pid, self.label),
            *(self.requested_us, self.grace, self.is_kicked),
        )


CLAIM_SLOTS = (
    *("expires_at", "grace", "granted_at", "granted_us", "is_kicked", "label", "owner"),
    *("pid", "requested_us", "token"),
)

C = TypeVar("C", bound=ProcessClaim)

# What happened, and to which claim: "granted"; "released", "kicked" or "expired" for holders;
# "cancelled", "timed out", "closed" or "too many" for waiters; "owner died" for both.
ClaimEvent: TypeAlias = "tuple[str, ProcessClaim]"


class BaseState(BaseLedger[C]):
    """The ledger behind a name, and what else the file remembers of it.

    What is asked for (``wanted``), and what a caller thinks the values are (``declared``), is up to
    the subclasses.
    """

    __slots__ = _SLOTS_OF_SUBCLASSES

    # Between any two calls, beside the ledger's own invariants:
    #   S1  owners counts the holders and waiters of each process
    #   S2  it is closed if and only if it has a closure
    #   S3  fence is the largest token that was ever issued

    RULES: ClassVar[int]
    CLAIM: ClassVar[type[Any]]

    name: str
    boot: str  # the boot of the machine: its monotonic clock restarts with each
    closure: Closure | None
    fence: int
    owners: dict[str, tuple[int, int]]  # number of claims, and the pid
    # Timed only while somebody waits, or with `times_all`, which each process decides for
    # itself: nothing that is granted depends on it.
    holds: HoldTimes
    times_all: bool
    # While an adaptive value may be moved by a hold that ends: how that ended, for how long it
    # was held if its process knows, and the service's retry_after, in microseconds; and by the
    # wall clock, when.
    ending: tuple[Outcome, int | None, int] | None
    # How adaptive values were moved by the last record: the tier (0 for a semaphore), its key, and
    # the change.
    moved: list[tuple[int, Any, Change]]
    wall_us: int

    def _set_up(self, name: str, boot: str) -> None:
        self.name = name
        self.boot = boot
        self.closure = None
        self.fence = 0
        self.owners = {}
        self.holds = HoldTimes()
        self.times_all = False
        self.ending = None
        self.moved = []
        self.wall_us = 0

    # Whether some value is adaptive.
    adapts: Any = False

    # For tiers only: whether some have rates, and whether all have, so that nothing is held.
    has_rates: Any = False
    holds_nothing: Any = False

    def is_idle(self, now: float) -> bool:  # noqa: ARG002 - tiers need it
        """Return whether nobody uses it."""
        return not self.holders and not self.waiting

    @property
    @abstractmethod
    def is_paused(self) -> bool:
        """Whether all or a part of it is paused."""

    def is_due(self, now: float) -> bool:
        """Return whether a deadline has passed, or a pause is over."""
        return self.deadlines is not None and self.next_deadline() <= now

    def can_be_settled(self, now: float) -> bool:  # noqa: ARG002 - tiers need it
        """Return whether what some ended claim took of a rate can still be corrected."""
        return False

    # ----------------------------------------------- what the two ledgers differ in

    @classmethod
    @abstractmethod
    def new(cls, name: str, declared: Any, boot: str) -> Self:
        """Return the state of a limit that nobody has used yet."""

    @abstractmethod
    def remembers(self, now: float) -> bool:
        """Return whether its file has to be kept while nobody uses it."""

    @abstractmethod
    def accepts(self, declared: Any) -> bool:
        """Return whether somebody who declares ``declared`` may use it; None matches anything."""

    def is_same_shape(self, declared: Any) -> bool:  # noqa: ARG002 - tiers need it
        """Return whether it is the same, apart from its values."""
        return True

    @abstractmethod
    def declaration(self, declared: Any, now: float) -> Any:
        """Return what "declare" has to tell an idle limit before a request; None for nothing."""

    @abstractmethod
    def value_to_record(self, declared: Any) -> Any:
        """Return what the record of a request says of the values."""

    @abstractmethod
    def is_free(self, wanted: Any, declared: Any, now: float) -> bool:
        """Return whether a newcomer would be granted what it wants at once."""

    @abstractmethod
    def takes_at_once(self, wanted: Any, declared: Any) -> bool:
        """Return whether a newcomer is admitted and granted what it wants without any wait.

        For most requests that is quick to tell. False says nothing: the caller checks all rules.
        """

    @abstractmethod
    def never_fits(self, wanted: Any, declared: Any, name: str | None) -> ValueError | None:
        """Return the error of a request that can never be granted, if that is so.

        ``name`` is that of the limit, for messages; None if it is private.
        """

    @abstractmethod
    def conflict(self, declared: Any) -> ValueConflict:
        """Return the error of somebody who declares other values than those in use."""

    def wanted_to_record(self, wanted: Any) -> Any:
        """How records write what is wanted."""
        return wanted

    def waiting_at(self, wanted: Any) -> Sequence[int]:  # noqa: ARG002 - tiers need it
        """Return how many wait for each node of a path; nothing without tiers."""
        return ()

    @abstractmethod
    def estimate(self, wanted: Any, now: float) -> float | None:
        """Return when a newcomer would be granted what it wants; None if unknown."""

    @abstractmethod
    def fullness(self, wanted: Any, now: float) -> str:
        """Return how full it is, for a caller that got no slot."""

    @abstractmethod
    def _enter(self, claim: C, value: Any, now: float, wait_until: float | None) -> list[C]:
        """Grant a newcomer what it wants, or queue it; ``value`` comes with the request."""

    @abstractmethod
    def _cancel_all(self, waiters: Sequence[C], now: float) -> list[C]:
        """Take waiters out of the queue; return who is granted now, none of them."""

    @abstractmethod
    def _shut(self, now: float) -> list[C]:
        """Refuse newcomers, and return those who waited."""

    @abstractmethod
    def _open(self, now: float) -> list[C]:
        """Undo `_shut`; return who is granted now."""

    @abstractmethod
    def _forget_all(self) -> None:
        """Forget all claims, and open it; values that were changed by a resize stay."""

    @abstractmethod
    def snapshot(self) -> dict[str, Any]:
        """Return all of it as plain values."""

    @classmethod
    @abstractmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        """Return the state that a snapshot was taken of."""

    # ----------------------------------------------------------- records

    def apply(self, record: Record) -> list[ClaimEvent]:
        """Apply a record, and return the events.

        Raises:
            ValueError, SemaphoreClosed: the ledger refused, and nothing has changed.
        """
        self.wall_us = record[2]
        if self.moved:
            self.moved.clear()
        return self.VERBS[record[0]](self, *record[1:])

    def _request(
        self,
        now: float,
        wall_us: int,
        acquisition_id: str,
        wanted: Any,
        ttl: float | None,
        wait_until: float | None,
        value: Any,
        pid: int,
        label: str | None,
        grace: float = 0.0,
    ) -> list[ClaimEvent]:
        claim = self.CLAIM(acquisition_id, wanted, ttl, pid, label, wall_us, grace)
        granted = self._enter(claim, value, now, wait_until)
        self._count(claim)
        return self._granted(granted, now, wall_us)

    def _release(
        self,
        now: float,
        wall_us: int,
        acquisition_id: str,
        outcome: Outcome = "ok",
        held_us: int | None = None,
        retry_after_us: int = 0,
    ) -> list[ClaimEvent]:
        self.ending = outcome, held_us, retry_after_us
        try:
            return self._end_hold(now, wall_us, acquisition_id, "released")
        finally:
            self.ending = None

    def _ending_of(self, claim: C, now: float) -> tuple[int, Outcome, int]:  # noqa: ARG002
        outcome, held_us, retry_after_us = self.ending or ("ignored", None, 0)
        if claim.is_kicked:
            outcome = "ignored"  # its grace ended, and not its ttl
        if held_us is None:
            held_us = max(self.wall_us - claim.granted_us, 0)
        return held_us, outcome, retry_after_us

    def _kick(self, now: float, wall_us: int, acquisition_id: str) -> list[ClaimEvent]:
        """End a hold; if it has a grace, its holder is told, and has that long to release it."""
        claim = self.holders.get(acquisition_id)
        if claim is None or not claim.grace:
            return self._end_hold(now, wall_us, acquisition_id, "kicked")
        ends_at = now + claim.grace
        if claim.expires_at is None or ends_at < claim.expires_at:
            claim.expires_at = ends_at
            self.timed().set(acquisition_id, ends_at)
        claim.is_kicked = True
        return [("kicked", claim)]

    def _end_hold(
        self, now: float, wall_us: int, acquisition_id: str, event: str
    ) -> list[ClaimEvent]:
        claim = self.holders.get(acquisition_id)
        if claim is None:
            return []
        if self.waiting or self.times_all:
            self._note_hold(claim, wall_us)
        granted = self.release(acquisition_id, now)
        self._uncount(claim)
        if not granted:
            return [(event, claim)]
        return [(event, claim), *self._granted(granted, now, wall_us)]

    def _withdraw(self, now: float, wall_us: int, acquisition_id: str) -> list[ClaimEvent]:
        """End a wait, or a hold if it was granted meanwhile."""
        claim = self.waiting.get(acquisition_id)
        if claim is None:
            return self._end_hold(now, wall_us, acquisition_id, "released")
        granted = self.cancel(acquisition_id, now)
        self._uncount(claim)
        return [("cancelled", claim), *self._granted(granted, now, wall_us)]

    def _expire(self, now: float, wall_us: int) -> list[ClaimEvent]:
        """End the holds and waits whose deadline has passed."""
        waited = bool(self.waiting)
        self.ending = "dropped", None, 0
        try:
            holders, waiters, granted = self.expire(now)
        finally:
            self.ending = None
        for claim in holders:
            self._note_hold(claim, wall_us, waited=waited)
        for claim in (*holders, *waiters):
            self._uncount(claim)
        return [
            *(("expired", claim) for claim in holders),
            *(("timed out", claim) for claim in waiters),
            *self._granted(granted, now, wall_us),
        ]

    def _drop_dead(
        self, now: float, wall_us: int, owners: list[str], undelivered: Sequence[str] = ()
    ) -> list[ClaimEvent]:
        """End the holds and waits of dead processes; some were granted after their process died."""
        dead = frozenset(owners)
        waiters = [claim for claim in self.waiting.values() if claim.owner in dead]
        holders = [claim for claim in self.holders.values() if claim.owner in dead]
        # Waiters first, so that none of them is granted anything.
        granted = self._cancel_all(waiters, now)
        for acquisition_id in undelivered:
            granted += self._undo_grant(acquisition_id, now)
        for claim in holders:
            if claim.key in self.holders:
                granted += self.release(claim.key, now)
        for claim in (*waiters, *holders):
            self._uncount(claim)
        return [
            *(("owner died", claim) for claim in (*waiters, *holders)),
            *self._granted(granted, now, wall_us),
        ]

    def _undo_grant(self, acquisition_id: str, now: float) -> list[C]:
        """Take back a grant that nobody has seen."""
        return self.release(acquisition_id, now)

    def _refused(
        self, refused: Iterable[C], granted: Iterable[C], now: float, wall_us: int
    ) -> list[ClaimEvent]:
        """Return the events of a resize."""
        for claim in refused:
            self._uncount(claim)
        return [
            *(("too many", claim) for claim in refused),
            *self._granted(granted, now, wall_us),
        ]

    def _close(self, now: float, _wall_us: int, reason: str | None) -> list[ClaimEvent]:
        self.closure = Closure(reason)
        waiters = self._shut(now)
        for claim in waiters:
            self._uncount(claim)
        return [("closed", claim) for claim in waiters]

    def _reopen(self, now: float, wall_us: int) -> list[ClaimEvent]:
        self.closure = None
        return self._granted(self._open(now), now, wall_us)

    def _reboot(self, now: float, _wall_us: int, boot: str) -> list[ClaimEvent]:
        """End everything: no process survived, and the clock of the deadlines restarted."""
        ended = [*self.holders.values(), *self.waiting.values()]
        self._forget_all()
        # A resize and a close outlive a reboot.
        if self.closure is not None:
            self._shut(now)
        self.owners = {}
        self.boot = boot
        return [("owner died", claim) for claim in ended]

    VERBS: ClassVar[dict[str, Callable[..., list[ClaimEvent]]]] = {
        "request": _request,
        "release": _release,
        "kick": _kick,
        "withdraw": _withdraw,
        "expire": _expire,
        "drop dead": _drop_dead,
        "close everywhere": _close,
        "reopen": _reopen,
        "reboot": _reboot,
    }

    # ------------------------------------------------------------ bookkeeping

    def _granted(self, claims: Iterable[C], now: float, wall_us: int) -> list[ClaimEvent]:
        """Issue the fencing tokens, in the order of the grants."""
        events: list[ClaimEvent] = []
        for claim in claims:
            self.fence = claim.token = max(self.fence + 1, wall_us)
            claim.granted_at = now
            claim.granted_us = wall_us
            claim.expires_at = None if claim.ttl is None else now + claim.ttl
            events.append(("granted", claim))
        return events

    def _note_hold(self, claim: C, wall_us: int, *, waited: bool = False) -> None:
        """Note that a hold ends: its length counts if somebody waits, or did until now."""
        if self.waiting or waited or self.times_all:
            self.holds.note((wall_us - claim.granted_us) / 1e6)

    @property
    def written_holds(self) -> list[float]:
        """Return how long holds take, for a snapshot."""
        return [self.holds.busy, self.holds.ended]

    def _count(self, claim: C) -> None:
        count, _ = self.owners.get(claim.owner, (0, 0))
        self.owners[claim.owner] = count + 1, claim.pid

    def _uncount(self, claim: C) -> None:
        count, pid = self.owners[claim.owner]
        if count == 1:
            del self.owners[claim.owner]
        else:
            self.owners[claim.owner] = count - 1, pid


AnyState: TypeAlias = BaseState[Any]
