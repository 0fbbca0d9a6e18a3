"""Events: tell hooks what happens to the acquisitions of this process, each thing once.

Drivers report what happens, by the id of the acquisition; a record for each that waits or holds
makes sure that these sums hold, whatever is reported twice, too late or by two threads:

    requested = acquired + refused + still waiting
    acquired = released + expired + lost + kicked + still held

Nothing here is called while there is no hook: drivers check `hooks` off their fast path, and
register with `on_switch` what closes that path. Hooks are never called under a lock of ours.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import ref

from slotwise._core import fork
from slotwise.errors import AcquireTimeout, BackendError, SemaphoreClosed

if TYPE_CHECKING:
    from slotwise._core.event import Event as Event  # noqa: TC004 - see `_replace`
    from slotwise._core.event import Kind as Kind
    from slotwise._core.event import Reason as Reason

ENDINGS: tuple[Kind, ...] = ("released", "expired", "lost", "kicked")

_NO_KEYS: Mapping[str, str] = MappingProxyType({})
_NOTHING_BY_TIER: Mapping[str, int] = MappingProxyType({})


# The fields of every event of an acquisition.
_OF_AN_ACQUISITION = ("acquisition_id", "slots", "keys", "values", "needs")

# What each kind means, and which fields it has besides `name` and `scope`. The docs have this
# table.
KINDS: Mapping[Kind, tuple[str, tuple[str, ...]]] = {
    "requested": ("slots are requested", _OF_AN_ACQUISITION),
    "acquired": (
        "they are granted, `waited` seconds after the request",
        (*_OF_AN_ACQUISITION, "waited", "fencing_token"),
    ),
    "refused": (
        "they are not granted, for a `reason`: timeout, cancelled, closed, full or unreachable",
        (*_OF_AN_ACQUISITION, "waited", "reason"),
    ),
    "released": (
        "the holder released them, after `held` seconds",
        (*_OF_AN_ACQUISITION, "held"),
    ),
    "expired": ("its ttl ended", (*_OF_AN_ACQUISITION, "held")),
    "lost": (
        "it ended in another way: by silence, or because its file or keys are gone",
        (*_OF_AN_ACQUISITION, "held"),
    ),
    "kicked": ("somebody kicked it", (*_OF_AN_ACQUISITION, "held")),
    "resized": ("this process changed the value of a limit", ("value", "tier", "keys")),
    "adapted": (
        "this process saw an adaptive limit change its value, for a `reason`",
        ("value", "tier", "keys", "reason"),
    ),
    "paused": ("this process paused a limit, for `seconds`", ("seconds", "tier", "keys")),
    "reopened": ("this process opened a limit, or ended its pauses", ()),
    "frozen": (
        "this process froze an adaptive value",
        ("tier", "keys"),
    ),
    "thawed": ("this process thawed it", ("tier", "keys")),
    "unreachable": ("a server, the `name`, stopped answering", ("reason",)),
    "back": ("it answers again, after `waited` seconds", ("waited",)),
}

Hook: TypeAlias = "Callable[[Event], object]"
# For how long, and which tier and key of it; None is the whole limit.
Pause: TypeAlias = tuple[float, str | None, str | None]

_log = logging.getLogger("slotwise.instrumentation")

# Replaced as a whole. `Event` is imported with the first.
hooks: tuple[Hook, ...] = ()

_lock = fork.new_lock()
_switches: list[Callable[[bool], object]] = []
_failed: set[int] = set()  # the ids of hooks whose failure is logged already


class ReportedAcquisition:
    """One acquisition that waits or holds, as it is reported."""

    __slots__ = (
        *("asked", "early", "granted", "holds", "keys", "name", "needs", "scope", "slots"),
        "values",
    )

    def __init__(
        self,
        name: str | None,
        scope: str,
        slots: int,
        keys: Mapping[str, str],
        asked: float,
        values: Mapping[str, int] = _NOTHING_BY_TIER,
        needs: Mapping[str, int] = _NOTHING_BY_TIER,
        holds: bool = True,
    ) -> None:
        self.name = name
        self.scope = scope
        self.slots = slots
        self.keys = keys
        self.asked = asked
        self.values = values
        self.needs = needs
        self.holds = holds  # False if it takes from rates alone: nothing ends then
        self.granted: float | None = None  # None while it waits
        self.early: tuple[Kind, float] | None = None  # it ended before its caller had it

    def event(
        self,
        kind: Kind,
        acquisition_id: str | None,
        *,
        waited: float | None = None,
        held: float | None = None,
        reason: str | None = None,
        fencing_token: int | None = None,
    ) -> Event:
        return Event.of(
            {
                "kind": kind,
                "name": self.name,
                "scope": self.scope,
                "acquisition_id": acquisition_id,
                "waited": waited,
                "held": held,
                "reason": reason,
                "tier": None,
                "keys": self.keys,
                "slots": self.slots,
                "values": self.values,
                "needs": self.needs,
                "value": None,
                "fencing_token": fencing_token,
                "seconds": None,
            }
        )


# Those of this process that wait or hold, by id.
_live: dict[str, ReportedAcquisition] = {}


def live() -> list[ReportedAcquisition]:
    """Return those that wait or hold now, and were requested while there was a hook."""
    with _lock:
        return list(_live.values())


# -------------------------------------------------------------------- hooks


def add_hook(hook: Hook) -> None:
    """Call ``hook`` with every `Event` from now on; adding it twice changes nothing.

    It is called in the thread in which the thing happens, so it should be quick. An exception
    that it raises is logged once, and reaches nobody else. What it does with limits itself is not
    reported.
    """
    if not callable(hook):
        raise TypeError(f"a hook is a callable of one event, not {type(hook).__name__}")
    _replace(lambda old: old if hook in old else (*old, hook))


def remove_hook(hook: Hook) -> None:
    """Don't call ``hook`` any more; one that was not added is ignored."""
    _replace(lambda old: tuple(each for each in old if each != hook))


def load_hooks() -> None:
    """Add the hooks that installed packages declare as entry points ``slotwise.hooks``.

    It reads the metadata of all of them, so call it when a program starts and not in its event
    loop. One that can't be loaded is logged.
    """
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    for entry in entry_points(group="slotwise.hooks"):
        try:
            add_hook(entry.load())
        except Exception:
            _log.exception("the hook %r of entry point slotwise.hooks can't be loaded", entry.value)


def _replace(change: Callable[[tuple[Hook, ...]], tuple[Hook, ...]]) -> None:
    global hooks, Event
    if change(hooks):
        from slotwise._core.event import Event
    with _lock:
        before, hooks = hooks, change(hooks)
        _failed.intersection_update(map(id, hooks))
        if bool(before) == bool(hooks):
            return
        if not hooks:
            _live.clear()
            _later.clear()
        for switch in _switches:
            switch(bool(hooks))


def on_switch(switch: Callable[[bool], object]) -> None:
    """Call ``switch`` now and whenever the first hook comes or the last one goes."""
    with _lock:
        _switches.append(switch)
        switch(bool(hooks))


# ------------------------------------------------------------------- telling


class _Telling(threading.local):
    busy = False  # whether this thread is in a hook


_telling = _Telling()
# Reported by the next thread that reports anything: events of acquisitions that end inside a hook,
# or in a garbage collection, which may have interrupted a hook or code that it shares locks with.
_later: deque[Event] = deque()


def _tell(*events: Event) -> None:
    _later.extend(events)
    if _telling.busy:
        return
    _telling.busy = True
    try:
        while _later:
            try:
                event = _later.popleft()
            except IndexError:  # another thread has it
                return
            for hook in hooks:
                _call(hook, event)
    finally:
        _telling.busy = False


def _call(hook: Hook, event: Event) -> None:
    try:
        hook(event)
    except Exception:
        if id(hook) not in _failed:
            _failed.add(id(hook))
            _log.exception("the hook %r failed; further failures of it are not logged", hook)


# ----------------------------------------------------------------- reporting


def requested(
    acquisition_id: str,
    name: str | None,
    scope: str,
    now: float,
    *,
    slots: int = 1,
    keys: Mapping[str, str] = _NO_KEYS,
    values: Mapping[str, int] = _NOTHING_BY_TIER,
    needs: Mapping[str, int] = _NOTHING_BY_TIER,
    holds: bool = True,
) -> None:
    """Report that somebody asks for slots; a request for rates alone holds nothing afterwards."""
    if _telling.busy or not hooks:
        return  # a hook's own, or nobody's
    record = ReportedAcquisition(name, scope, slots, keys, now, values, needs, holds)
    with _lock:
        _live[acquisition_id] = record
    _tell(record.event("requested", acquisition_id))


def acquired(acquisition_id: str, now: float, fencing_token: int | None = None) -> None:
    """Report that the caller has its slots."""
    with _lock:
        record = _live.get(acquisition_id)
        if record is None or record.granted is not None:
            return
        record.granted = now
        early = record.early
        if early is not None or not record.holds:
            del _live[acquisition_id]
    told = [
        record.event(
            "acquired", acquisition_id, waited=now - record.asked, fencing_token=fencing_token
        )
    ]
    if early is not None:
        kind, ended_at = early
        told.append(record.event(kind, acquisition_id, held=max(ended_at - now, 0.0)))
    _tell(*told)


def refused(
    acquisition_id: str, now: float, error: BaseException | None, *, waits: bool = True
) -> None:
    """Report that the caller gets nothing, because of ``error``; None if a try found nothing free.

    ``waits`` is whether the caller wanted to wait.
    """
    with _lock:
        record = _live.get(acquisition_id)
        if record is None or record.granted is not None:
            return
        del _live[acquisition_id]
    event = record.event(
        "refused", acquisition_id, waited=now - record.asked, reason=_reason(error, waits)
    )
    if isinstance(error, GeneratorExit):
        _later.append(event)  # this is perhaps a garbage collection
    else:
        _tell(event)


def _reason(error: BaseException | None, waits: bool) -> Reason:
    if isinstance(error, BackendError):  # even if it is a timeout too
        return "unreachable"
    if isinstance(error, AcquireTimeout):
        return "timeout" if waits else "full"
    if isinstance(error, SemaphoreClosed):
        return "closed"
    if error is None or isinstance(error, Exception):  # for example, it will never fit
        return "full"
    return "cancelled"


def ended(
    acquisition_id: str, kind: Kind, now: float, pauses: Callable[[], Sequence[Pause]] = tuple
) -> None:
    """Report that a hold ended; only the first report counts.

    ``pauses`` returns what its service has asked to pause.
    """
    with _lock:
        record = _live.get(acquisition_id)
        if record is None:
            return
        if record.granted is None:
            # Its caller doesn't have it yet: either it never will, or it is told then.
            record.early = record.early or (kind, now)
            return
        del _live[acquisition_id]
    _tell(record.event(kind, acquisition_id, held=now - record.granted))
    for seconds, tier, key in pauses() if kind == "released" else ():
        keys = record.keys if tier is None else _NO_KEYS if key is None else {tier: key}
        paused = Event("paused", record.name, record.scope, tier=tier, keys=keys, seconds=seconds)
        _tell(paused)


def adapted(
    name: str | None,
    scope: str,
    value: int | None,
    reason: str,
    tier: str | None = None,
    keys: Mapping[str, str] = _NO_KEYS,
) -> None:
    """Report that a value has moved by itself, and why."""
    if hooks:
        _tell(Event("adapted", name, scope, reason=reason, tier=tier, keys=keys, value=value))


# The tiers with rates that hooks were told of, by name and scope: metrics ask them what is left.
rated: dict[tuple[str | None, str], ref[Any]] = {}


def note_rates(name: str | None, scope: str, backend: object) -> None:
    key = (name, scope)
    known = rated.get(key)
    if known is None or known() is None:
        rated[key] = ref(backend, lambda own: rated.pop(key) if rated.get(key) is own else None)


def changed(
    kind: Kind,
    name: str | None,
    scope: str,
    tier: str | None = None,
    key: str | None = None,
    *,
    value: object = None,
    seconds: float | None = None,
) -> None:
    """Report what this process did to a limit, a tier or one key; of a rate, the burst."""
    if hooks:
        number = value if isinstance(value, int) else getattr(value, "burst", None)
        keys = _NO_KEYS if key is None or tier is None else {tier: key}
        _tell(Event(kind, name, scope, tier=tier, keys=keys, value=number, seconds=seconds))


def unreachable(server: str, why: str) -> None:
    if hooks:
        _tell(Event("unreachable", server, "redis", reason=why))


def back(server: str, seconds: float) -> None:
    if hooks:
        _tell(Event("back", server, "redis", waited=seconds))


def _forget() -> None:
    """In a forked child: its parent's acquisitions are not its own."""
    _live.clear()
    _later.clear()
    _telling.busy = False


fork.in_child(fork.Step.FORGET, _forget)
