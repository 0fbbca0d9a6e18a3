"""The verbs that change a limit for everybody: whom each is for, what it checks, asks and says.

The commands, ``top`` and the page make all their changes through `plan`. Who may ask for one, and
how it is typed, is up to them; messages name flags, as the commands have them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from slotwise._admin import BadRequest, tier_view
from slotwise._admin.backends import Backend, Kind, NotFound, controlled, find_holder
from slotwise._admin.text import command_hint, count, describe_claimant, duration, units
from slotwise._core.arguments import check_limit, check_reason, check_text, check_value
from slotwise._core.control import WHOLE
from slotwise._core.found_tiers import FoundTiers
from slotwise._core.paths import TierSpec
from slotwise._core.rates import Rate
from slotwise._core.semaphore import Semaphore
from slotwise._core.stats import age
from slotwise.errors import SlotwiseError

#: what messages call a rate
RATE = "a rate such as 600/60s, 10/s or 5000/1h"


class InUse(SlotwiseError):
    """The semaphore is held or waited for, or a rate of the tiers is not full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A change that somebody wants: a verb, whom it is for, and its arguments."""

    verb: str
    name: str | None = None
    kind: Kind = None
    tier: str | None = None
    key: str | None = None
    value: int | Rate | None = None
    burst: int | None = None  # of a rate; otherwise it stays
    seconds: float = 0.0
    reason: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A change that can be made: the question before it; ``make`` returns what was done."""

    question: str
    make: Callable[[], str]


@dataclass(frozen=True, slots=True)
class _TierKind:
    """The tiers that a verb is for."""

    fits: Callable[[TierSpec], bool]
    trait: str
    unfit: str = ""


ANY_TIER = _TierKind(lambda _: True, "has keys")
_RATES = _TierKind(lambda spec: isinstance(spec.value, Rate), "has a rate", "has no rate")
_ADAPTIVE = _TierKind(
    lambda spec: spec.adaptive is not None,
    *("is adaptive", "has a fixed value: 'slotwise resize' changes it"),
)


def choose_tier(
    found: FoundTiers, tier: str | None, key: str | None, kind: _TierKind = ANY_TIER
) -> TierSpec:
    """Return the tier of that name; without one, the only tier that can be meant.

    Raises:
        NotFound: there is none.
        BadRequest: there are several.
        ValueError: the tier has no keys, or is of another kind.
    """
    if tier is None:
        fitting = [spec for spec in found.specs if kind.fits(spec) and (spec.keyed or key is None)]
        names = ", ".join(spec.name for spec in fitting)
        if not fitting:
            trait = (ANY_TIER if any(map(kind.fits, found.specs)) else kind).trait
            raise NotFound(f"no tier of {found.name!r} {trait}")
        if len(fitting) > 1:
            raise BadRequest(f"choose one with --tier: of {found.name!r}, there are: {names}")
        return fitting[0]
    names = ", ".join(spec.name for spec in found.specs)
    spec = next((spec for spec in found.specs if spec.name == tier), None)
    if spec is None:
        listed = f"; there are: {names}" if names else ""
        raise NotFound(f"{found.name!r} has no tier {tier!r}{listed}")
    if not kind.fits(spec):
        raise ValueError(f"tier {tier!r} of {found.name!r} {kind.unfit}")
    if key is not None and not spec.keyed:
        raise ValueError(f"tier {tier!r} of {found.name!r} has no keys")
    return spec


class _Target:
    """What a change is for: a semaphore, tiers, one of the tiers, or one key of it."""

    def __init__(self, backend: Backend, wanted: Wanted) -> None:
        name, tier, key = wanted.name, wanted.tier, wanted.key
        assert name is not None
        verb = _VERBS[wanted.verb]
        chosen = tier is not None or key is not None
        if chosen and (verb.tiers is None or wanted.kind == "semaphore"):
            raise BadRequest(f"{wanted.verb} takes no --tier and no --key")
        self.backend = backend
        self.wanted = wanted
        self.kind: Kind = "tiers" if chosen else wanted.kind or verb.kind
        self.found = backend.find(name, self.kind, suggest=wanted.verb != "close")
        self.limit = controlled(self.found)
        self.spec: TierSpec | None = None
        self.title = repr(name)
        if not isinstance(self.found, FoundTiers) or verb.tiers is None:
            return
        if verb.whole and not chosen:  # the widest tier is of every path
            self.spec = next(reversed(self.found.specs), None)
            return
        self.spec = spec = choose_tier(self.found, tier, key, verb.tiers)
        if key is None and spec.keyed and verb.needs_key(spec):
            raise BadRequest(f"each key of {spec.name!r} has its own: choose one with --key")
        self.title = f"{'each ' if spec.keyed else ''}{spec.name} of {name!r}"
        if key is not None:
            self.title = f"{spec.name} {check_text('key', key)!r} of {name!r}"

    def control(self, *args: object) -> bool:
        where = WHOLE if self.spec is None else (self.spec.name, self.wanted.key)
        verb = _VERBS[self.wanted.verb].control or self.wanted.verb
        return bool(self.limit.control_sync(verb, where, *args))  # type: ignore[arg-type]

    @property
    def view(self) -> tier_view.TierView:
        """How full the chosen tier is, with all its keys."""
        assert isinstance(self.found, FoundTiers)
        assert self.spec is not None
        return tier_view.view(self.found).only(self.spec.name, None).tiers[0]

    @property
    def counts(self) -> tier_view.TierCounts:
        """How full the chosen key is, or if nobody uses it, or none was chosen, the tier."""
        view, key = self.view, self.wanted.key
        return next((each for each in view.keys if each.key == key), view.total)

    @property
    def undo(self) -> str:
        flags = ["--tiers"] if self.kind == "tiers" else []
        return f"'{command_hint('open', self.wanted.name or '', *flags, url=self.backend.url)}'"

    @property
    def waiters(self) -> str:
        found = self.found
        waiting = found.waiters if isinstance(found, FoundTiers) else found.stats_sync().waiting
        return count(waiting, "waiter")


def _resize(to: _Target) -> str:
    value, spec = to.wanted.value, to.spec
    if isinstance(to.found, Semaphore):
        if isinstance(value, Rate):
            raise BadRequest(f"{to.title} is a semaphore: N is a number of slots")
        before = to.found.stats_sync().max_slots
        to.control(check_value(value))
        return f"{to.title} has {_amount(value)} now, {before} before"
    assert spec is not None
    if isinstance(spec.value, Rate) is not isinstance(value, Rate):
        what = f"a rate, and takes {RATE}" if isinstance(spec.value, Rate) else "not a rate"
        raise BadRequest(f"tier {spec.name!r} is {what}")
    counts = to.counts
    known: object = counts.value or "no limit"
    if isinstance(value, Rate):
        burst = to.wanted.burst or counts.value  # not the default of a new rate
        value = Rate(value.count, per=value.per, burst=burst)
        known = counts.rate
    else:
        check_limit("value", value)
    to.control(value)
    unknown = spec.by_key and not counts.value
    return f"{to.title} has {_amount(value)} now" + ("" if unknown else f", {known} before")


def _amount(value: int | Rate | None) -> str:
    if isinstance(value, int):
        return count(value, "slot") if value else "no limit"
    return str(value)


def _pause(to: _Target) -> str:
    to.control(to.wanted.seconds)
    left = to.wanted.seconds
    if isinstance(to.found, Semaphore):
        left = max(to.found.stats_sync().paused_for, left)
    return f"{to.title} is paused for {duration(left)}; {to.undo} ends it"


def _freeze(to: _Target) -> str:
    value, spec = to.wanted.value, to.spec
    assert not isinstance(value, Rate)
    if value is not None and spec is not None and spec.adaptive is not None:
        spec.adaptive.check_value(value)
    _move(to, None if value is None else check_value(value))
    if isinstance(to.found, Semaphore):
        value = to.found.stats_sync().max_slots
    return f"{to.title} stays {'where it is' if value is None else f'at {_amount(value)}'}"


def _thaw(to: _Target) -> str:
    if isinstance(to.found, FoundTiers) and to.spec is not None:  # a key has to be in use
        tier_view.view(to.found).only(to.spec.name, to.wanted.key)
    _move(to)
    if isinstance(to.found, Semaphore):
        return f"{to.title} moves again, from {_amount(to.found.stats_sync().max_slots)}"
    return f"{to.title} moves again"


def _move(to: _Target, *args: object) -> None:
    try:
        to.control(*args)
    except TypeError:  # its message is for programmers
        raise ValueError(f"{to.title} {_ADAPTIVE.unfit}") from None


def _refill(to: _Target) -> str:
    before = to.counts.level
    to.control()
    known = "it was full before" if before is None else f"{units(before)} were left before"
    return f"{to.title} is full now; {known}"


def _close(to: _Target) -> str:
    if isinstance(to.found, FoundTiers):
        held = count(to.found.holders, "acquisition")
    else:
        held = count(to.found.stats_sync().acquired_slots, "slot")
    rejected = to.waiters
    to.control(check_reason(to.wanted.reason or None))
    return f"{to.title} is closed: rejected {rejected}, {held} still held\n{to.undo} undoes it"


def _open(to: _Target) -> str:
    if isinstance(to.found, FoundTiers):
        was_closed = to.found.closure is not None
        was_paused = bool(tier_view.view(to.found).paused())
    else:
        stats = to.found.stats_sync()
        was_closed, was_paused = stats.closed, stats.paused_for > 0
    to.control()
    before = "" if was_closed else ", and was not closed"
    return f"{to.title} is open" + (", and its pause is over" if was_paused else before)


def _forget(backend: Backend, wanted: Wanted) -> Change:
    name = wanted.name or ""

    def make() -> str:
        if not backend.forget(name, wanted.kind):
            flags = ["--tiers"] if wanted.kind == "tiers" else []
            show = command_hint("show", name, *flags, url=backend.url)
            raise InUse(f"{name!r} is in use; '{show}' lists by whom. Nothing was done")
        return f"forgot {name!r}"

    return Change(f"Forget {name!r}?", make)


def _kick(backend: Backend, wanted: Wanted) -> Change:
    assert wanted.id is not None
    if wanted.tier is not None or wanted.key is not None:
        raise BadRequest("kick takes no --tier and no --key")
    name, limit, holder = find_holder(backend, wanted.id, wanted.name, wanted.kind)
    keys = "".join(f" {tier}={key!r}" for tier, key in holder.keys.items())
    words = (
        f"{describe_claimant(holder)}, which has held {count(holder.slots, 'slot')} of"
        f" {name!r}{keys} for {duration(age(holder.since)) or 'an unknown time'}"
    )

    def make() -> str:
        if not limit.kick_sync(holder.acquisition_id):
            raise NotFound(f"{wanted.id!r} has ended already; nothing was kicked")
        return f"kicked {words}"

    return Change(f"Kick {words}?", make)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verb:
    """One verb: what it does to a target, and what of it has to be given."""

    make: Callable[[_Target], str]
    question: Callable[[_Target], str]
    needs: str = ""  # another field of Wanted than the name
    kind: Kind = None
    tiers: _TierKind | None = None  # of which one may be chosen
    whole: bool = False  # without a choice it is for all of the tiers
    needs_key: Callable[[TierSpec], bool] = lambda _: False
    control: str | None = None  # what the control path calls it


_VERBS: dict[str, _Verb] = {
    "resize": _Verb(
        make=_resize,
        question=lambda to: f"Give {to.title} {_amount(to.wanted.value)}?",
        needs="value",
        tiers=ANY_TIER,
        needs_key=lambda spec: bool(spec.by_key),
    ),
    "pause": _Verb(
        make=_pause,
        question=lambda to: f"Pause {to.title}?",
        tiers=ANY_TIER,
        whole=True,
        needs_key=lambda _: True,
    ),
    "freeze": _Verb(
        make=_freeze, question=lambda to: f"Freeze the value of {to.title}?", tiers=_ADAPTIVE
    ),
    "thaw": _Verb(
        make=_thaw, question=lambda to: f"Thaw the value of {to.title}?", tiers=_ADAPTIVE
    ),
    "refill": _Verb(
        make=_refill,
        question=lambda to: f"Fill {to.title}?",
        kind="tiers",
        tiers=_RATES,
        needs_key=lambda _: True,
    ),
    "close": _Verb(
        make=_close,
        question=lambda to: (
            f"Close {to.title}, rejecting {to.waiters} now and all newcomers until {to.undo}?"
        ),
        control="close_everywhere",
    ),
    "open": _Verb(make=_open, question=lambda to: f"Open {to.title} again?", control="reopen"),
}
_PLANS = {"kick": _kick, "forget": _forget}
VERBS = (*_VERBS, *_PLANS)


def plan(backend: Backend, wanted: Wanted) -> Change:
    """Find what a change is for; it is made when the answer to its question is yes.

    Raises:
        BadRequest: it makes no sense.
        NotFound: there is no such name, or nobody holds by that id.
    """
    verb = _VERBS.get(wanted.verb)
    needed = "id" if wanted.verb == "kick" else "name"
    for field in (needed, verb.needs if verb else ""):
        if field and getattr(wanted, field) is None:
            raise BadRequest(f"{wanted.verb} needs a {field}")
    if verb is None:
        return _PLANS[wanted.verb](backend, wanted)
    target = _Target(backend, wanted)
    return Change(verb.question(target), partial(verb.make, target))
