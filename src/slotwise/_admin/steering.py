"""Steer: kick, resize, close, open, freeze and thaw, for the page and for ``top``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slotwise._admin.backends import Backend, NotFound, find_holder
from slotwise._core.arguments import check_reason, check_text
from slotwise._core.control import WHOLE
from slotwise._core.found_tiers import FoundTiers
from slotwise._core.rates import Rate
from slotwise._core.semaphore import Semaphore

_KINDS = ("semaphore", "tiers")
_FIELDS = {
    "kick": ("id",),
    "resize": ("name", "value"),
    "close": ("name",),
    "open": ("name",),
    "freeze": ("name",),
    "thaw": ("name",),
}


class BadRequest(ValueError):
    """The request makes no sense."""


def steer(backend: Backend, wanted: Mapping[str, Any]) -> str:
    """Do it; return what was done, in words.

    Raises:
        BadRequest: it makes no sense.
        NotFound: there is no such name, or nobody holds by that id.
    """
    action = wanted.get("action")
    if not isinstance(action, str) or action not in _FIELDS:
        raise BadRequest(f"action must be one of {', '.join(_FIELDS)}")
    for field in _FIELDS[action]:
        kind = int if field == "value" else str
        if not isinstance(wanted.get(field), kind) or isinstance(wanted.get(field), bool):
            raise BadRequest(f"{action} needs {field}, {'a number' if kind is int else 'a string'}")
    for field in ("name", "tier", "key"):
        if not isinstance(wanted.get(field), str | None):
            raise BadRequest(f"{field} must be a string")
    if wanted.get("kind") not in (None, *_KINDS):
        raise BadRequest(f"kind must be one of {', '.join(_KINDS)}")
    name = wanted.get("name")
    if action == "kick" and not _has_tier(wanted):
        # Where the name is known, nothing else is searched.
        return _kick(backend, wanted["id"], name, wanted.get("kind"))
    if name is None:
        raise BadRequest(f"{action} takes no tier and no key")
    limit = _find(backend, name, wanted)
    if _has_tier(wanted) and action not in ("resize", "freeze", "thaw"):
        raise BadRequest(f"{action} takes no tier and no key")
    if action == "resize":
        return _resize(limit, name, wanted)
    if action in ("freeze", "thaw"):
        return _freeze(limit, name, wanted, thaw=action == "thaw")
    target = limit.paths if isinstance(limit, FoundTiers) else limit
    if action == "close":
        reason = wanted.get("reason")
        why = check_reason(reason if isinstance(reason, str) and reason else None)
        target._control_sync("close_everywhere", WHOLE, why)
        return f"{name!r} is closed everywhere"
    target._control_sync("reopen")
    return f"{name!r} is open"


def _has_tier(wanted: Mapping[str, Any]) -> bool:
    return wanted.get("tier") is not None or wanted.get("key") is not None


def _find(backend: Backend, name: str, wanted: Mapping[str, Any]) -> Semaphore | FoundTiers:
    """Return the limit of that name; where there are both, a tier or a key is that of the tiers.

    Raises:
        NotFound: there is none of that kind, or it has no such tier.
        BadRequest: a key is that of no tier, or of one without keys.
    """
    kind, tier, key = wanted.get("kind"), wanted.get("tier"), wanted.get("key")
    suggest = wanted["action"] != "close"
    if kind == "semaphore" and _has_tier(wanted):
        raise BadRequest("a semaphore has no tier and no key")
    if kind == "semaphore":
        return backend.find(name, suggest=suggest)
    if kind is None and not _has_tier(wanted):
        return backend.find_either(name, suggest=suggest)
    limit = backend.find_either(name, only_tiers=True, suggest=suggest)
    assert isinstance(limit, FoundTiers)
    specs = {spec.name: spec for spec in limit.specs}
    if tier is not None and tier not in specs:
        raise NotFound(f"{name!r} has no tier {tier!r}")
    if key is not None and (tier is None or not specs[tier].keyed):
        raise BadRequest("key is that of a keyed tier")
    if key is not None:
        check_text("key", key)
    return limit


def _freeze(
    limit: Semaphore | FoundTiers, name: str, wanted: Mapping[str, Any], *, thaw: bool
) -> str:
    """Keep an adaptive value where it is, or at ``value``; or let it move again."""
    value, done = wanted.get("value"), "thawed" if thaw else "frozen"
    if value is not None and (thaw or not isinstance(value, int) or isinstance(value, bool)):
        raise BadRequest("freeze takes a number as value, or none; thaw takes none")
    if not isinstance(limit, FoundTiers):
        if thaw:
            limit.thaw_sync()
        else:
            limit.freeze_sync(value)
        return f"{name!r} is {done}"
    tier, key = wanted.get("tier"), wanted.get("key")
    if tier not in [spec.name for spec in limit.specs if spec.rules]:
        raise BadRequest("freeze and thaw of tiers need an adaptive one of them as tier")
    where = str(tier), key
    if thaw:
        limit.paths._control_sync("thaw", where)
    else:
        limit.paths._control_sync("freeze", where, value)
    return f"{tier} of {name!r} is {done}"


def _kick(backend: Backend, acquisition_id: str, name: str | None, kind: str | None) -> str:
    holding = find_holder(backend, acquisition_id, name)
    found = "semaphore" if isinstance(holding.limit, Semaphore) else "tiers"
    if kind not in (None, found):
        raise NotFound(f"{acquisition_id!r} is a holder of the {found} {holding.name!r}")
    if not holding.limit.kick_sync(acquisition_id):
        raise NotFound(f"{acquisition_id!r} has ended meanwhile")
    return f"{acquisition_id!r} of {holding.name!r} was kicked"


def _resize(limit: Any, name: str, wanted: Mapping[str, Any]) -> str:
    value = wanted["value"]
    if not isinstance(limit, FoundTiers):
        limit.resize_sync(value)
        return f"{name!r} has {value} slots now"
    tier, key = wanted.get("tier"), wanted.get("key")
    if tier is None or value < 0:
        raise BadRequest("resize of tiers needs one of them as tier, and a value of 0 or more")
    [spec] = [spec for spec in limit.specs if spec.name == tier]
    if isinstance(spec.value, Rate):
        raise BadRequest(f"tier {tier!r} of {name!r} is a rate: 'slotwise resize' changes it")
    if spec.by_key and key is None:
        raise BadRequest(f"each key of tier {tier!r} has its own value: resize needs a key")
    limit.paths._control_sync("resize", (tier, key), value)
    return f"{tier} of {name!r} has {value} slots now"
