"""State: apply the records of a journal to the ledger of one semaphore.

A state is a ledger with a few more fields. Every process that uses the semaphore applies the
same records in the same order and so reaches the same state: nothing here may depend on
anything but the records. It reads no clock and no file, and doesn't know who is alive.

Processes of different releases share files. So a change of these rules, or of the ledger's,
that gives another result for the same records needs another `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeAlias

from slotwise._core.closing import Closure
from slotwise._ledger import Claim, Ledger

RULES = 4

# Verb, time by the monotonic clock, wall clock time in microseconds, and the verb's arguments.
Record: TypeAlias = "list[Any]"


class ProcessClaim(Claim):
    """The claim of a holder or waiter in any process."""

    __slots__ = (
        *("expires_at", "grace", "granted_us", "is_kicked", "label", "owner", "pid"),
        *("requested_us", "token"),
    )

    owner: str  # the process: the prefix of its acquisition ids
    pid: int
    label: str | None
    requested_us: int
    grace: float  # for how long it keeps its slots after a kick, in seconds
    is_kicked: bool
    granted_us: int  # set when it is granted, like the next two
    token: int
    expires_at: float | None

    def __init__(
        self,
        acquisition_id: str,
        slots: int,
        ttl: float | None,
        pid: int,
        label: str | None,
        requested_us: int,
        grace: float = 0.0,
        is_kicked: bool = False,
    ) -> None:
        self.key = acquisition_id
        self.slots = slots
        self.ttl = ttl
        self.owner = owner_of(acquisition_id)
        self.pid = pid
        self.label = label
        self.requested_us = requested_us
        self.grace = grace
        self.is_kicked = is_kicked

    def arguments(self) -> tuple[Any, ...]:
        """Return what `__init__` takes, for a snapshot."""
        return (
            *(self.key, self.slots, self.ttl, self.pid, self.label),
            *(self.requested_us, self.grace, self.is_kicked),
        )


# What happened, and to which claim: "granted"; "released", "kicked" or "expired" for holders;
# "cancelled", "timed out", "closed" or "too many" for waiters; "owner died" for both.
Event: TypeAlias = "tuple[str, ProcessClaim]"


def owner_of(acquisition_id: str) -> str:
    return acquisition_id.partition("-")[0]


class State(Ledger[ProcessClaim]):
    """The ledger behind a name, and what else the file remembers of it."""

    __slots__ = ("boot", "closure", "fence", "name", "owners")

    # Between any two calls, beside the ledger's own invariants:
    #   S1  owners counts the holders and waiters of each process
    #   S2  it is closed if and only if it has a closure
    #   S3  fence is the largest token that was ever issued

    def __init__(self, name: str, value: int, boot: str) -> None:
        super().__init__(value)
        self.name = name
        self.boot = boot  # of the machine: its monotonic clock restarted then
        self.closure: Closure | None = None
        self.fence = 0
        self.owners: dict[str, tuple[int, int]] = {}  # number of claims, and the pid

    @property
    def remembers(self) -> bool:
        """Whether its file has to be kept while nobody uses it."""
        return self.is_resized or self.closed

    @property
    def idle(self) -> bool:
        return not self.holders and not self.waiting

    def is_due(self, now: float) -> bool:
        """Return whether a deadline has passed."""
        return self.deadlines is not None and self.next_deadline() <= now

    # ----------------------------------------------------------- records

    def apply(self, record: Record) -> list[Event]:
        """Apply a record, and return the events.

        Raises:
            ValueError, SemaphoreClosed: the ledger refused, and nothing has changed.
        """
        verb, now, wall_us, *args = record
        return self._VERBS[verb](self, now, wall_us, *args)

    def _request(
        self,
        now: float,
        wall_us: int,
        acquisition_id: str,
        slots: int,
        ttl: float | None,
        wait_until: float | None,
        value: int | None,
        pid: int,
        label: str | None,
        grace: float = 0.0,
    ) -> list[Event]:
        if value is not None and not self.accepts(value) and self.idle:
            self.start_anew(value, now)
        claim = ProcessClaim(acquisition_id, slots, ttl, pid, label, wall_us, grace)
        granted = self.request(claim, now, wait_until=wait_until)
        self._count(claim)
        return self._granted(granted, now, wall_us)

    def _release(self, now: float, wall_us: int, acquisition_id: str) -> list[Event]:
        return self._end_hold(now, wall_us, acquisition_id, "released")

    def _kick(self, now: float, wall_us: int, acquisition_id: str) -> list[Event]:
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

    def _end_hold(self, now: float, wall_us: int, acquisition_id: str, event: str) -> list[Event]:
        claim = self.holders.get(acquisition_id)
        if claim is None:
            return []
        granted = self.release(acquisition_id, now)
        self._uncount(claim)
        return [(event, claim), *self._granted(granted, now, wall_us)]

    def _withdraw(self, now: float, wall_us: int, acquisition_id: str) -> list[Event]:
        """End a wait, or a hold if it was granted meanwhile."""
        claim = self.waiting.get(acquisition_id)
        if claim is None:
            return self._end_hold(now, wall_us, acquisition_id, "released")
        granted = self.cancel(acquisition_id, now)
        self._uncount(claim)
        return [("cancelled", claim), *self._granted(granted, now, wall_us)]

    def _expire(self, now: float, wall_us: int) -> list[Event]:
        """End the holds and waits whose deadline has passed."""
        holders, waiters, granted = self.expire(now)
        for claim in (*holders, *waiters):
            self._uncount(claim)
        return [
            *(("expired", claim) for claim in holders),
            *(("timed out", claim) for claim in waiters),
            *self._granted(granted, now, wall_us),
        ]

    def _drop_dead(self, now: float, wall_us: int, owners: list[str]) -> list[Event]:
        """End the holds and waits of dead processes."""
        dead = frozenset(owners)
        waiters = [claim for claim in self.waiting.values() if claim.owner in dead]
        holders = [claim for claim in self.holders.values() if claim.owner in dead]
        granted: list[ProcessClaim] = []
        # Waiters first, in reverse order, so that none of them is granted anything.
        for claim in (*reversed(waiters), *holders):
            self._uncount(claim)
            end = self.cancel if claim.key in self.waiting else self.release
            granted += end(claim.key, now)
        return [
            *(("owner died", claim) for claim in (*waiters, *holders)),
            *self._granted(granted, now, wall_us),
        ]

    def _resize(self, now: float, wall_us: int, value: int, declared: int | None) -> list[Event]:
        refused, granted = self.resize(value, now, declared=declared)
        for claim in refused:
            self._uncount(claim)
        return [
            *(("too many", claim) for claim in refused),
            *self._granted(granted, now, wall_us),
        ]

    def _close(self, _now: float, _wall_us: int, reason: str | None) -> list[Event]:
        self.closure = Closure(reason)
        waiters = self.close()
        for claim in waiters:
            self._uncount(claim)
        return [("closed", claim) for claim in waiters]

    def _reopen(self, now: float, wall_us: int) -> list[Event]:
        self.closure = None
        return self._granted(self.reopen(now), now, wall_us)

    def _reboot(self, _now: float, _wall_us: int, boot: str) -> list[Event]:
        """End everything: no process survived, and the clock of the deadlines restarted."""
        ended = [*self.holders.values(), *self.waiting.values()]
        self.reset()
        # A resize and a close outlive a reboot.
        if self.closure is not None:
            self.close()
        self.owners = {}
        self.boot = boot
        return [("owner died", claim) for claim in ended]

    _VERBS: ClassVar[dict[str, Callable[..., list[Event]]]] = {
        "request": _request,
        "release": _release,
        "kick": _kick,
        "withdraw": _withdraw,
        "expire": _expire,
        "drop dead": _drop_dead,
        "resize": _resize,
        "close everywhere": _close,
        "reopen": _reopen,
        "reboot": _reboot,
    }

    # ------------------------------------------------------------ bookkeeping

    def _granted(self, claims: Iterable[ProcessClaim], now: float, wall_us: int) -> list[Event]:
        """Issue the fencing tokens, in the order of the grants."""
        for claim in claims:
            self.fence = claim.token = max(self.fence + 1, wall_us)
            claim.granted_us = wall_us
            claim.expires_at = None if claim.ttl is None else now + claim.ttl
        return [("granted", claim) for claim in claims]

    def _count(self, claim: ProcessClaim) -> None:
        count, _ = self.owners.get(claim.owner, (0, 0))
        self.owners[claim.owner] = count + 1, claim.pid

    def _uncount(self, claim: ProcessClaim) -> None:
        count, pid = self.owners[claim.owner]
        if count == 1:
            del self.owners[claim.owner]
        else:
            self.owners[claim.owner] = count - 1, pid

    # -------------------------------------------------------------- snapshots

    def snapshot(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "name": self.name,
            "value": self.value,
            "former": self.former_values,
            "boot": self.boot,
            "closure": None if self.closure is None else [self.closure.reason],
            "fence": self.fence,
            "holders": [
                [
                    *claim.arguments(),
                    *(claim.granted_us, claim.token, claim.expires_at, claim.numbers),
                ]
                for claim in self.holders.values()
            ],
            "waiting": [
                [
                    *claim.arguments(),
                    self.deadline_of(claim.key),
                ]
                for claim in self.waiting.values()
            ],
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> State:
        """Return the state that a snapshot was taken of."""
        state = cls(snapshot["name"], snapshot["value"], snapshot["boot"])
        state.former_values = tuple(snapshot["former"])
        state.fence = snapshot["fence"]
        held = []
        for *fields, granted_us, token, expires_at, numbers in snapshot["holders"]:
            claim = ProcessClaim(*fields)
            claim.granted_us, claim.token, claim.expires_at = granted_us, token, expires_at
            held.append((claim, numbers, expires_at))
            state._count(claim)
        state.restore_holders(held)
        if snapshot["closure"] is not None:
            state.closure = Closure(*snapshot["closure"])
            state.close()
        for *fields, wait_until in snapshot["waiting"]:
            claim = ProcessClaim(*fields)
            # Nobody who was waiting fits, so this grants nothing.
            if state.request(claim, wait_until=wait_until):
                raise ValueError("a waiter could have been granted its slots")
            state._count(claim)
        return state
