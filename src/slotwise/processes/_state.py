"""State: what is known of one semaphore, and how each record of its journal changes it.

A ledger with a few facts beside it. Every process that uses the semaphore
applies the same records in the same order and so comes to the same state:
nothing here may depend on anything but the records. No clock, no file, no
waiting, and no opinion about who is alive.

A change of these rules, or of the ledger's, that gives another outcome for the
same records needs another `RULES`: processes of different releases share files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeAlias

from slotwise._core.closing import Closure
from slotwise._ledger import Claim, Ledger, ranges_of

RULES = 2

# Verb, time by the machine's monotonic clock, wall clock in microseconds, and what the verb takes.
Record: TypeAlias = "list[Any]"


class Entry(Claim):
    """One holder or waiter, of any process."""

    __slots__ = ("asked_us", "expires_at", "granted_us", "label", "owner", "pid", "token")

    owner: str  # the process, by the token that begins its acquisition ids
    pid: int
    label: str | None
    asked_us: int
    granted_us: int  # set once it is granted, as the next two
    token: int
    expires_at: float | None

    def __init__(
        self,
        acquisition_id: str,
        slots: int,
        ttl: float | None,
        pid: int,
        label: str | None,
        asked_us: int,
    ) -> None:
        self.key = acquisition_id
        self.slots = slots
        self.ttl = ttl
        self.owner = owner_of(acquisition_id)
        self.pid = pid
        self.label = label
        self.asked_us = asked_us


# What happened to whom: "granted"; to holders "released", "kicked", "expired"; to
# waiters "cancelled", "timed out", "closed", "too many"; to either "buried".
Event: TypeAlias = "tuple[str, Entry]"


def owner_of(acquisition_id: str) -> str:
    return acquisition_id.partition("-")[0]


class State(Ledger[Entry]):
    """The ledger behind a name, with what else has to be remembered of it."""

    __slots__ = ("boot", "closure", "fence", "former_values", "name", "owners")

    # Between any two calls, beside the ledger's own invariants:
    #   S1  owners counts the holders and waiters of each process
    #   S2  it is closed exactly while it has a closure
    #   S3  fence is the largest token that was ever given

    def __init__(self, name: str, value: int, boot: str) -> None:
        super().__init__(value)
        self.name = name
        self.boot = boot  # of the machine: its clock began anew with it
        self.former_values: tuple[int, ...] = ()
        self.closure: Closure | None = None
        self.fence = 0
        self.owners: dict[str, tuple[int, int]] = {}  # how many entries, and the pid

    def accepts(self, value: int | None) -> bool:
        """Whether an instance made with ``value`` is one of ours; None is."""
        return value is None or value == self.value or value in self.former_values

    @property
    def resized(self) -> bool:
        """Whether it has another value than the one it was made with."""
        return bool(self.former_values) and self.former_values[0] != self.value

    @property
    def remembers(self) -> bool:
        """Whether there is something to remember of it while nobody is there."""
        return self.resized or self.closed

    @property
    def idle(self) -> bool:
        return not self.holders and not self.waiting

    def is_due(self, now: float) -> bool:
        """Whether somebody's time is up."""
        return self.deadlines is not None and self.next_deadline() <= now

    # ----------------------------------------------------------- the records

    def apply(self, record: Record) -> list[Event]:
        """Make the change that ``record`` stands for, and tell what happened to whom.

        Raises:
            ValueError, SemaphoreClosed: the ledger refuses, and nothing has changed.
        """
        verb, now, wall_us, *args = record
        return self._VERBS[verb](self, now, wall_us, *args)

    def _ask(
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
    ) -> list[Event]:
        if value is not None and not self.accepts(value) and self.idle:
            self.resize(value, now)
            self.former_values = ()
        entry = Entry(acquisition_id, slots, ttl, pid, label, wall_us)
        granted = self.request(entry, now, wait_until=wait_until)
        count, _ = self.owners.get(entry.owner, (0, 0))
        self.owners[entry.owner] = count + 1, pid
        return self._granted(granted, now, wall_us)

    def _release(self, now: float, wall_us: int, acquisition_id: str) -> list[Event]:
        return self._end(now, wall_us, acquisition_id, "released")

    def _kick(self, now: float, wall_us: int, acquisition_id: str) -> list[Event]:
        return self._end(now, wall_us, acquisition_id, "kicked")

    def _end(self, now: float, wall_us: int, acquisition_id: str, word: str) -> list[Event]:
        entry = self.holders.get(acquisition_id)
        if entry is None:
            return []
        granted = self.release(acquisition_id, now)
        self._forget(entry)
        return [(word, entry), *self._granted(granted, now, wall_us)]

    def _withdraw(self, now: float, wall_us: int, acquisition_id: str) -> list[Event]:
        """End it whatever it is by now."""
        entry = self.waiting.get(acquisition_id)
        if entry is None:
            return self._end(now, wall_us, acquisition_id, "released")
        granted = self.cancel(acquisition_id, now)
        self._forget(entry)
        return [("cancelled", entry), *self._granted(granted, now, wall_us)]

    def _tick(self, now: float, wall_us: int) -> list[Event]:
        """End all whose time is up."""
        holders, waiters, granted = self.expire(now)
        for entry in (*holders, *waiters):
            self._forget(entry)
        return [
            *(("expired", entry) for entry in holders),
            *(("timed out", entry) for entry in waiters),
            *self._granted(granted, now, wall_us),
        ]

    def _bury(self, now: float, wall_us: int, owners: list[str]) -> list[Event]:
        """End all of processes that are dead."""
        dead = frozenset(owners)
        waiters = [entry for entry in self.waiting.values() if entry.owner in dead]
        holders = [entry for entry in self.holders.values() if entry.owner in dead]
        granted: list[Entry] = []
        # Waiters first, the last of them before all: nobody dead is granted anything.
        for entry in (*reversed(waiters), *holders):
            self._forget(entry)
            take_out = self.cancel if entry.key in self.waiting else self.release
            granted += take_out(entry.key, now)
        return [
            *(("buried", entry) for entry in (*waiters, *holders)),
            *self._granted(granted, now, wall_us),
        ]

    def _resize(self, now: float, wall_us: int, value: int, declared: int | None) -> list[Event]:
        known = (self.value,) if declared is None else (self.value, declared)
        self.former_values = (*dict.fromkeys((*self.former_values, *known)),)
        refused, granted = self.resize(value, now)
        for entry in refused:
            self._forget(entry)
        return [
            *(("too many", entry) for entry in refused),
            *self._granted(granted, now, wall_us),
        ]

    def _close(self, _now: float, _wall_us: int, reason: str | None) -> list[Event]:
        self.closure = Closure(reason)
        waiters = self.close()
        for entry in waiters:
            self._forget(entry)
        return [("closed", entry) for entry in waiters]

    def _reopen(self, now: float, wall_us: int) -> list[Event]:
        self.closure = None
        return self._granted(self.reopen(now), now, wall_us)

    def _reboot(self, _now: float, _wall_us: int, boot: str) -> list[Event]:
        """Nobody of before lives, and the clock of all the deadlines has begun anew."""
        ended = [*self.holders.values(), *self.waiting.values()]
        # A resize and a close outlive the machine's sleep.
        Ledger.__init__(self, self.value)
        if self.closure is not None:
            self.close()
        self.owners = {}
        self.boot = boot
        return [("buried", entry) for entry in ended]

    _VERBS: ClassVar[dict[str, Callable[..., list[Event]]]] = {
        "ask": _ask,
        "release": _release,
        "kick": _kick,
        "withdraw": _withdraw,
        "tick": _tick,
        "bury": _bury,
        "resize": _resize,
        "close everywhere": _close,
        "reopen": _reopen,
        "reboot": _reboot,
    }

    # ------------------------------------------------------------ bookkeeping

    def _granted(self, entries: Iterable[Entry], now: float, wall_us: int) -> list[Event]:
        """Give each its fencing token, in the order of the grants."""
        for entry in entries:
            self.fence = entry.token = max(self.fence + 1, wall_us)
            entry.granted_us = wall_us
            entry.expires_at = None if entry.ttl is None else now + entry.ttl
        return [("granted", entry) for entry in entries]

    def _forget(self, entry: Entry) -> None:
        count, pid = self.owners[entry.owner]
        if count == 1:
            del self.owners[entry.owner]
        else:
            self.owners[entry.owner] = count - 1, pid

    # -------------------------------------------------------------- snapshots

    def snapshot(self) -> dict[str, Any]:
        """All of it, as plain values."""
        deadlines = self.deadlines
        return {
            "name": self.name,
            "value": self.value,
            "former": self.former_values,
            "boot": self.boot,
            "closure": None if self.closure is None else [self.closure.reason],
            "fence": self.fence,
            "holders": [
                [
                    *(entry.key, entry.slots, entry.ttl, entry.pid, entry.label, entry.asked_us),
                    *(entry.granted_us, entry.token, entry.expires_at, entry.numbers),
                ]
                for entry in self.holders.values()
            ],
            "waiting": [
                [
                    *(entry.key, entry.slots, entry.ttl, entry.pid, entry.label, entry.asked_us),
                    None if deadlines is None else deadlines.get(entry.key),
                ]
                for entry in self.waiting.values()
            ],
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> State:
        """The state that a snapshot was made of."""
        state = cls(snapshot["name"], snapshot["value"], snapshot["boot"])
        state.former_values = tuple(snapshot["former"])
        state.fence = snapshot["fence"]
        held: set[int] = set()
        for *basics, granted_us, token, expires_at, numbers in snapshot["holders"]:
            entry = Entry(*basics)
            entry.granted_us, entry.token, entry.expires_at = granted_us, token, expires_at
            entry._slot_number = numbers[0]
            entry.ranges = ranges_of(numbers)
            held.update(numbers)
            state.holders[entry.key] = entry
            if expires_at is not None:
                state.timed().set(entry.key, expires_at)
            state._count(entry)
        state._circulate(held)
        if snapshot["closure"] is not None:
            state.closure = Closure(*snapshot["closure"])
            state.close()
        for *basics, wait_until in snapshot["waiting"]:
            entry = Entry(*basics)
            # Nobody fits who waited when it was made, so none is granted by this.
            if state.request(entry, wait_until=wait_until):
                raise ValueError("somebody waits who fits")
            state._count(entry)
        return state

    def _count(self, entry: Entry) -> None:
        count, _ = self.owners.get(entry.owner, (0, 0))
        self.owners[entry.owner] = count + 1, entry.pid

    def _circulate(self, held: set[int]) -> None:
        """Take the numbers of restored holders out of what is free."""
        if not held:
            return
        self.top = max(held)
        self.circulating = len(held)
        self.free = []
        self.reserve = ranges_of({*range(1, self.top + 1)} - held)
        self._rebalance()
        if not self.waiting:
            self._lower_attention()
