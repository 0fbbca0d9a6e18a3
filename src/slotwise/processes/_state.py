"""State: the ledger of one semaphore, as its file has it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from slotwise._core.adaptive import Adaptive
from slotwise._core.closing import Closure
from slotwise._core.messages import (
    NAMED_HOLDERS,
    display,
    occupancy,
    oldest_holders,
    rules_conflict,
    too_many_slots,
    value_conflict,
)
from slotwise._core.outcomes import too_many_for_adaptive
from slotwise._ledger import Claim, Ledger
from slotwise._ledger.estimates import HoldTimes, slots_in, total
from slotwise._ledger.times import microseconds
from slotwise.errors import ValueConflict
from slotwise.processes._adaptations import read_adaptation, write_adaptation
from slotwise.processes._base_state import CLAIM_SLOTS, BaseState, ClaimEvent, ProcessClaim

if TYPE_CHECKING:
    from slotwise._ledger.adaptation import Adaptation

# The value that somebody declares; None accepts any.
Declared: TypeAlias = "int | Adaptive | None"


class RankedSlots(int):
    """A number of slots, and the head start with which they are wanted, in microseconds."""

    head_start: int = 0


class SemaphoreClaim(ProcessClaim, Claim):
    """The claim of a holder or waiter of slots."""

    __slots__ = (*CLAIM_SLOTS, "head_start", "replaces")

    head_start: int
    replaces: bool  # it replaces a holder, and waits for it to leave

    @property
    def wanted(self) -> int | list[int]:
        return [self.slots, self.head_start] if self.head_start else self.slots

    def _want(self, wanted: int | list[int]) -> None:
        self.slots, self.head_start = (wanted, 0) if isinstance(wanted, int) else wanted
        self.replaces = False


class State(BaseState[SemaphoreClaim], Ledger[SemaphoreClaim]):
    """What the file of a semaphore has. What is wanted and declared are numbers of slots."""

    __slots__ = (
        *("adaptation", "boot", "closure", "ending", "fence", "holds", "moved", "name", "owners"),
        *("times_all", "wall_us"),
    )

    adaptation: Adaptation | None

    RULES = 7
    CLAIM = SemaphoreClaim

    def __init__(self, name: str, value: int, boot: str) -> None:
        Ledger.__init__(self, value)
        self._set_up(name, boot)
        self.adaptation = None

    @classmethod
    def new(cls, name: str, declared: int | Adaptive, boot: str) -> Self:
        # The first request declares how the value moves.
        return cls(name, declared.start if isinstance(declared, Adaptive) else declared, boot)

    @property
    def adapts(self) -> bool:
        return self.adaptation is not None

    @property
    def is_resized(self) -> bool:
        if self.adaptation is not None:
            return self.adaptation.frozen
        return Ledger.is_resized.fget(self)  # type: ignore[attr-defined,no-any-return]

    def remembers(self, now: float) -> bool:
        known = self.adaptation
        has_learnt = known is not None and known.is_worth_keeping(microseconds(now))
        return self.is_resized or self.closed or self.is_paused or has_learnt

    @property
    def is_paused(self) -> bool:
        return self.paused_until > 0

    def paused_for(self, now: float) -> float:
        """Return in how many seconds a pause ends; 0.0 if there is none."""
        return max(self.paused_until - now, 0.0) if self.paused_until else 0.0

    # ------------------------------------------------------------- requests

    def accepts(self, declared: Declared) -> bool:
        if isinstance(declared, Adaptive):
            known = self.adaptation
            return known is not None and known.options.written == declared.written
        return declared is None if self.adapts else Ledger.accepts(self, declared)

    def declaration(self, declared: Declared, now: float) -> str | None:
        if not isinstance(declared, Adaptive) or self.accepts(declared):
            return None  # a request carries its value
        if not self.is_idle(now):
            raise self.conflict(declared)
        return declared.written

    def value_to_record(self, declared: Declared) -> int | None:
        return None if isinstance(declared, Adaptive) else declared

    def is_free(self, wanted: int, declared: Declared, now: float) -> bool:
        if self.paused_until > now:
            return False
        if declared != self.value and not self.accepts(declared):
            return self.is_idle(now)
        if self.in_use + wanted > self.value:
            return False
        if not self.waiting:
            return True
        return (isinstance(wanted, RankedSlots) or self.ranks is not None) and self._passes(
            wanted, now
        )

    def takes_at_once(self, wanted: int, declared: Declared) -> bool:
        return (
            not self.attention  # so it is open, not paused, and nobody waits
            and declared == self.value
            and self.adaptation is None
            and type(wanted) is int
            and wanted <= len(self.free)
        )

    def _passes(self, wanted: int, now: float) -> bool:
        """Whether a newcomer comes before all waiters, by its head start or theirs."""
        claim = SemaphoreClaim("", self.wanted_to_record(wanted), None, 0, None, 0)
        return self._comes_first(claim, now)

    def wanted_to_record(self, wanted: int) -> int | list[int]:
        if type(wanted) is int:
            return wanted
        head_start = wanted.head_start if isinstance(wanted, RankedSlots) else 0
        return [int(wanted), head_start] if head_start else int(wanted)

    def never_fits(self, wanted: int, declared: Declared, name: str | None) -> ValueError | None:
        title = display(name)
        if declared == self.value and self.adaptation is None:  # the usual case, sooner
            return too_many_slots(title, wanted, self.value) if wanted > self.value else None
        accepted = declared == self.value or self.accepts(declared)
        adapting = self.adaptation.options if accepted and self.adaptation is not None else declared
        if isinstance(adapting, Adaptive):
            return too_many_for_adaptive(title, wanted, adapting) if wanted > adapting.min else None
        value = self.value if accepted or adapting is None else adapting
        return too_many_slots(title, wanted, value) if wanted > value else None

    def conflict(self, declared: Declared) -> ValueConflict:
        known = None if self.adaptation is None else self.adaptation.options
        if known is not None or isinstance(declared, Adaptive):
            given = declared if isinstance(declared, Adaptive) else None
            return rules_conflict(self.name, given, known, self.value)
        return value_conflict(
            self.name, declared, value=self.value, held=self.in_use, waiting=len(self.waiting)
        )

    def estimate(self, wanted: int, now: float) -> float | None:
        if self.closed:
            return None
        paused_for = self.paused_for(now)
        if not self.waiting and self.in_use + wanted <= self.value:
            return paused_for
        ahead = total((claim.slots for claim in self.waiting.values()), len(self.waiting))
        missing = self.in_use + ahead + wanted - self.value
        seconds = slots_in(missing, self.value, self.holds.mean)
        return max(seconds or 0.0, paused_for) if paused_for else seconds

    def fullness(self, wanted: int, now: float) -> str:  # noqa: ARG002 - tiers need it
        return occupancy(
            value=self.value,
            held=self.in_use,
            waiting=len(self.waiting),
            oldest=self._oldest_holders(),
            paused_for=self.paused_for(now),
        )

    def _oldest_holders(self) -> str:
        host, now = os.uname().nodename, time.time()
        return oldest_holders(
            (host, claim.pid, claim.label, max(now - claim.granted_us / 1e6, 0.0))
            for claim in islice(self.holders.values(), NAMED_HOLDERS)
        )

    def _enter(
        self, claim: SemaphoreClaim, value: int | None, now: float, wait_until: float | None
    ) -> list[SemaphoreClaim]:
        if claim.slots == 1 and self.free and self._is_quick and value in (None, self.value):
            # `request` while nobody waits, in fewer steps: the take of the quick lane.
            self._file(claim, heappop(self.free), now)
            return [claim]
        if value is not None and not self.accepts(value) and self.is_idle(now):
            self.adaptation = None
            self.start_anew(value, now)
        return self.request(claim, now, wait_until=wait_until)

    def release(self, key: Hashable, now: float = 0.0) -> list[SemaphoreClaim]:
        claim = self.holders.get(key)
        if claim is None or claim.slots != 1 or not self._is_quick:
            return super().release(key, now)
        # In fewer steps: the give of the quick lane. Nobody waits, so nobody is to be served.
        del self.holders[key]
        if self.deadlines is not None:
            self.deadlines.discard(key)
        heappush(self.free, claim._slot_number)
        return []

    @property
    def _is_quick(self) -> bool:
        """Whether the quick lane is open, and nothing is learnt from what is held."""
        return not self.attention and self.adaptation is None

    def _cancel_all(self, waiters: Sequence[SemaphoreClaim], now: float) -> list[SemaphoreClaim]:
        # In reverse order: then the head, whose end alone can let others in, is the last.
        return [each for claim in reversed(waiters) for each in self.cancel(claim.key, now)]

    # ------------------------------------------------------------ replacing

    def replaceable(self, wanted: int) -> list[SemaphoreClaim]:
        """Return whose slots a newcomer would take over, the longest hold first."""
        holders = (claim for claim in self.holders.values() if not claim.is_kicked)
        return self.to_replace(holders, wanted)

    def _replace(
        self,
        now: float,
        wall_us: int,
        acquisition_id: str,
        wanted: int | list[int],
        ttl: float | None,
        wait_until: float | None,
        value: int | None,
        pid: int,
        label: str | None,
        grace: float = 0.0,
    ) -> list[ClaimEvent]:
        """Kick the longest holders, and give a newcomer their slots, now or after the grace."""
        if not isinstance(wanted, int):
            wanted = wanted[0]  # a request that replaces comes before all head starts
        if wanted > self.value or self.closed or self.is_free(wanted, value, now):
            args = acquisition_id, wanted, ttl, wait_until, value, pid, label, grace
            return self._request(now, wall_us, *args)
        claim = SemaphoreClaim(acquisition_id, wanted, ttl, pid, label, wall_us, grace)
        claim.replaces = True
        events: list[ClaimEvent] = []
        for each in self.replaceable(wanted):
            if each.grace:
                events += self._kick(now, wall_us, each.key)
                continue
            self._note_hold(each, wall_us)
            del self.holders[each.key]
            if self.deadlines is not None:
                self.deadlines.discard(each.key)
            self._free(each, now)
            self._uncount(each)
            events.append(("kicked", each))
        granted = self.request_first(claim, now, wait_until=wait_until)
        self._count(claim)
        return [*events, *self._granted(granted, now, wall_us)]

    # ------------------------------------------------------------- adapting

    def _declare(self, now: float, _wall_us: int, written: str) -> list[ClaimEvent]:
        """Make the value adaptive; nobody holds or waits."""
        from slotwise._ledger.adaptation import adaptation  # most values are fixed

        options = Adaptive.read(written)
        self.adaptation = None
        self.start_anew(options.start, now)
        self.adaptation = adaptation(options, microseconds(now))
        return []

    def _free(self, claim: SemaphoreClaim, now: float) -> None:
        if self.adaptation is not None:
            self.adaptation.epoch_us = self.wall_us - microseconds(now)
        Ledger._free(self, claim, now)

    def _follow(self) -> None:
        Ledger._follow(self)
        assert self.adaptation is not None
        change = self.adaptation.take_change()
        if change is not None:
            self.moved.append((0, None, change))

    def _freeze(self, now: float, wall_us: int, value: int | None) -> list[ClaimEvent]:
        """Freeze it at a value, or at the current one."""
        assert self.adaptation is not None
        now_us = microseconds(now)
        self.adaptation.epoch_us = wall_us - now_us
        self.adaptation.freeze(now_us, value)
        refused, granted = self.adapt(self.adaptation.limit, now)
        return self._refused(refused, granted, now, wall_us)

    def _thaw(self, now: float, _wall_us: int) -> list[ClaimEvent]:
        assert self.adaptation is not None
        self.adaptation.thaw(microseconds(now))
        return []

    def _reboot(self, now: float, wall_us: int, boot: str) -> list[ClaimEvent]:
        """Keep what was learnt over a reboot, except what was measured by the old clock."""
        if self.adaptation is not None:
            self.adaptation.change_clock(microseconds(now))
            self.value = self.adaptation.limit
        return super()._reboot(now, wall_us, boot)

    # ---------------------------------------------------------- controlling

    def _resize(
        self, now: float, wall_us: int, value: int, declared: int | None
    ) -> list[ClaimEvent]:
        if self.adapts:
            return self._freeze(now, wall_us, value)
        refused, granted = self.resize(value, now, declared=declared)
        return self._refused(refused, granted, now, wall_us)

    def _pause(self, _now: float, _wall_us: int, until: float) -> list[ClaimEvent]:
        self.pause(until)
        return []

    def _shut(self, now: float) -> list[SemaphoreClaim]:  # noqa: ARG002 - tiers need it
        return self.close()

    def _open(self, now: float) -> list[SemaphoreClaim]:
        return self.reopen(now)

    def _forget_all(self) -> None:
        self.reset()

    VERBS: ClassVar[dict[str, Callable[..., list[ClaimEvent]]]] = {
        **BaseState.VERBS,
        "declare": _declare,
        "freeze": _freeze,
        "reboot": _reboot,
        "replace": _replace,
        "resize": _resize,
        "thaw": _thaw,
        "pause": _pause,
    }

    # -------------------------------------------------------------- snapshots

    def snapshot(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "former": self.former_values,
            "boot": self.boot,
            "closure": None if self.closure is None else [self.closure.reason],
            "paused": self.paused_until or None,
            "fence": self.fence,
            "holds": self.written_holds,
            "adaptation": None if self.adaptation is None else write_adaptation(self.adaptation),
            "holders": [
                [
                    *claim.arguments(),
                    *(claim.granted_us, claim.token, claim.expires_at, claim.numbers),
                ]
                for claim in self.holders.values()
            ],
            "replacing": [claim.key for claim in self.waiting.values() if claim.replaces],
            "arrived": [claim.arrived for claim in self.waiting.values()],
            # Once somebody has a head start: the last ticket, and those of all who wait.
            "tickets": None
            if self.ranks is None
            else [self.ranks.last_ticket, *self.ranks.tickets(self.waiting)],
            "waiting": [
                [
                    *claim.arguments(),
                    self.deadline_of(claim.key),
                ]
                for claim in self.waiting.values()
            ],
        }

    def value_at(self) -> int:
        return self.value

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        state = cls(snapshot["name"], snapshot["value"], snapshot["boot"])
        state.former_values = tuple(snapshot["former"])
        adaptation = snapshot.get("adaptation")
        state.adaptation = None if adaptation is None else read_adaptation(adaptation)
        state.fence = snapshot["fence"]
        state.holds = HoldTimes(*snapshot.get("holds", ()))
        held = []
        for *fields, granted_us, token, expires_at, numbers in snapshot["holders"]:
            claim = SemaphoreClaim(*fields)
            claim.granted_us, claim.token, claim.expires_at = granted_us, token, expires_at
            held.append((claim, numbers, expires_at))
            state._count(claim)
        state.restore_holders(held)
        if snapshot["paused"] is not None:
            state.pause(snapshot["paused"])
        if snapshot["closure"] is not None:
            state.closure = Closure(*snapshot["closure"])
            state.close()
        replacing = {*snapshot.get("replacing", ())}
        waiting = []
        for (*fields, wait_until), arrived in zip(
            snapshot["waiting"], snapshot["arrived"], strict=True
        ):
            claim = SemaphoreClaim(*fields)
            claim.replaces = claim.key in replacing
            waiting.append((claim, arrived, wait_until))
            state._count(claim)
        last_ticket, *tickets = snapshot["tickets"] or [0]
        # No waiter fits, or it would have been granted: so this grants nothing.
        state.restore_waiting(waiting, tickets if snapshot["tickets"] else None, last_ticket)
        return state
