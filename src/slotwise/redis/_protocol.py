"""How our scripts are called, and what their replies mean; lua/*.lua has their contracts.

Semaphores and tiers differ in their keys and in a few words. Nothing here sends anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from slotwise._core import messages
from slotwise._core.adaptive import Adaptive
from slotwise._core.closing import Closure
from slotwise._core.outcomes import too_many_for_adaptive
from slotwise._core.paths import Needs, Path, blame, most_of, part_of, tiers_conflict
from slotwise._core.rates import Rate
from slotwise.errors import AcquireTimeout, SlotwiseError
from slotwise.redis._diagnosis import GARBAGE, not_ours
from slotwise.redis._inspect import read_owner
from slotwise.redis._net.call import pack_half
from slotwise.redis._scripts import Script, load
from slotwise.redis._writing import read_node, read_shape, read_value

if TYPE_CHECKING:
    from slotwise._core.overload import Overload
    from slotwise.redis._acquisition import RedisAcquisition
    from slotwise.redis._backend import RedisBackend
    from slotwise.redis._shared_client import NameRecord, SharedClient

REQUEST, RELEASE, HEARTBEAT = load("request"), load("release"), load("heartbeat")
CONTROL, INSPECT = load("control"), load("inspect")

AGAIN_AT = 7  # which argument of a request tells that it may have been made before

_WITH_REASON = 2

# How many requests, or releases, one call may carry: the server does nothing else meanwhile, for
# about 3 ms.
MOST_AT_ONCE = 100


class Released(NamedTuple):
    """The result of a release: whether the acquisition was held, or was waiting."""

    held: bool
    waited: bool = False
    counts: Sequence[Any] = ()  # what was full, if that was asked for: for `timeout_error`


HELD, WAITED, NOT_HELD = Released(True), Released(False, True), Released(False)

# ---------------------------------------------------------------------------- requests


def write_wait(overload: Overload | None, timeout: float | None = None) -> str:
    """Return how a request says that it waits, and under which conditions; see lua/request.lua."""
    if overload is None:
        return "wait"
    shed = f" shed {'-' if timeout is None else timeout}" if overload.sheds else ""
    total, *tiers = ["-" if m is None else str(m) for m in (overload.max_waiting, *overload.tiers)]
    return f"wait {total} {','.join(tiers)}".rstrip() + shed


def request_args(
    batch: Sequence[RedisAcquisition], *, wait: bool, again: bool, due: bytes
) -> list[Any]:
    """Return the arguments of requests of one object; if they are several, all are alike."""
    first = batch[0]
    limit = first.limit
    if first.replaces:
        word = "replace" if wait else "replace try"
    else:
        word = write_wait(limit._overload, first.timeout) if wait else "try"
    args = [*_first_args(limit), word, b"again" if again else b""]
    args += [f"{_owner(limit)} {first.label}", due, _told(batch)]
    for each in batch:
        args += (each._acquisition_id, each.written_path)
    return args


def _first_args(limit: RedisBackend) -> tuple[Any, ...]:
    shared, record = limit._attached()
    ttl = b"-" if limit._ttl is None else limit._ttl
    names = shared.names_key(record)
    return b"", names, limit._shape, limit._declared, limit._interval, ttl


def _owner(limit: RedisBackend) -> str:
    """Return who asks, as lua/rules/base.lua has it, without the label."""
    owner, grace = limit._attached()[0].owner, limit.grace
    return f"{owner}/{grace:.3f}" if grace else owner


def _told(batch: Sequence[RedisAcquisition]) -> bytes:
    """Return what requests tell beside the paths: how foreign clients listen, or values of keys."""
    record = batch[0].record
    if record.is_semaphore:
        return record.pattern
    return " ".join(filter(None, (each.written_values for each in batch))).encode()


def request_template(limit: RedisBackend) -> bytes:
    """Return the beginning of a packed request that may wait and has no label."""
    words = (*_first_args(limit), write_wait(limit._overload), b"", f"{_owner(limit)} ")
    return _pack_call(REQUEST, limit._attached()[1].keys.all, 13, *words)


def pack_request(acquisition: RedisAcquisition, due: bytes) -> bytes:
    """Return such a request, packed: most of it is always the same."""
    own = (due, _told((acquisition,)), acquisition._acquisition_id.encode())
    words = (*own, acquisition.written_path.encode())
    return acquisition.limit._request_template() + b"".join(map(_pack_word, words))


def _pack_call(script: Script, keys: Sequence[bytes], count: int, *words: Any) -> bytes:
    """Return the beginning of a packed call with ``count`` arguments: up to those given."""
    first = pack_half((b"EVALSHA", script.sha, len(keys), *keys, *words))
    return b"*%d\r\n" % (3 + len(keys) + count) + first


def _pack_word(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


def on_reply(acquisition: RedisAcquisition, reply: list[Any]) -> list[bytes]:
    """Tell an acquisition the reply to its request; return the messages that follow it."""
    word, limit, record = reply[0], acquisition.limit, acquisition.record
    more = 1 if record.is_semaphore else 0  # a reply about a semaphore tells one thing more
    if word == b"granted":
        if more:
            record.learn(reply[3], limit._declared)
        acquisition.on_granted(reply[1], reply[2])
        return reply[3 + more :]
    if word == b"queued":
        if more:
            record.learn(reply[2], limit._declared)
        acquisition.on_queued(reply[1])
        return reply[2 + more :]
    if word == b"busy":
        acquisition.fail(timeout_error(acquisition, 0.0, reply[1 : 5 + more]))
        return reply[5 + more :]
    if word == b"full":
        waiting, estimate, is_late = reply[5:8]
        error = messages.limit_full(
            limit._title,
            _fullness(acquisition, reply[1:5]),
            waiting=waiting,
            estimate=read_estimate(estimate),
            timeout=acquisition.timeout if is_late else None,
        )
        acquisition.fail(error)
        return reply[8:]
    if word == b"refused":
        acquisition.fail(never_fits(limit, acquisition.path, acquisition.needs, *reply[1:3]))
        return reply[3:]
    acquisition.fail(refusal(limit, reply))
    return []


def refusal(limit: RedisBackend, reply: list[Any]) -> SlotwiseError:
    """Return the error for a reply "closed" or "conflict"."""
    if reply[0] == b"closed":
        return limit._closed_error(read_closure(reply[1:]))
    try:
        return _conflict(limit, *reply[1:5])
    except GARBAGE:
        return not_ours(limit._title)


def read_closure(reason: Sequence[bytes]) -> Closure:
    """Return what a script says of a closed name: its reason, or nothing."""
    # Whatever other tools have written, it is closed.
    return Closure(reason[0].decode(errors="backslashreplace") if reason else None)


def _conflict(
    limit: RedisBackend, index: int, value: int | bytes, held: int, waiting: int
) -> SlotwiseError:
    specs, name = limit._specs, limit._record.name
    written = value.decode() if isinstance(value, bytes) else ""
    shape, _, declared = written.partition(" ")
    if limit._record.is_semaphore:
        known, given = _rules_in(declared), specs[0].adaptive
        if known is not None or given is not None:
            return messages.rules_conflict(name, given, known, 0 if written else int(value))
        return messages.value_conflict(
            name, specs[0].slots, value=int(value), held=held, waiting=waiting
        )
    if written and not written.startswith("rate "):
        return tiers_conflict(name, read_shape(shape, declared), specs)
    used = [*specs]
    in_use = read_value(declared) if written else int(value)
    used[index] = replace(used[index], value=in_use, adaptive=None, rules="")
    return tiers_conflict(name, used, specs)


def _rules_in(declared: str) -> Adaptive | None:
    try:
        return Adaptive.read(declared.replace("_", " "))
    except (TypeError, ValueError):
        return None


def never_fits(
    limit: RedisBackend, path: Path, needs: Needs | None, value: int, tier: int
) -> ValueError:
    """Return the error for a request of more than ``value`` of a tier."""
    need = 1 if needs is None else needs[tier]
    which = part_of(limit._specs, limit.reported_name, tier, path[tier])
    spec = limit._specs[tier]
    if spec.adaptive is not None:
        return too_many_for_adaptive(which, need, spec.adaptive)
    if isinstance(spec.value, Rate):
        return messages.cost_above_burst(which, need, value)
    return messages.too_many_slots(which, need, value)


# ---------------------------------------------------------------------------- timeouts


def timeout_error(
    acquisition: RedisAcquisition, waited: float, counts: Sequence[Any]
) -> AcquireTimeout:
    """Return the error for a wait that timed out, with the counts of `Released` or a reply."""
    why = _fullness(acquisition, counts) or "it came just too late"
    return messages.no_slot(acquisition.limit._title, waited, why)


def _fullness(acquisition: RedisAcquisition, counts: Sequence[Any]) -> str:
    """Return which tier has no room, and why; nothing if all have."""
    try:
        return _read_fullness(acquisition, *counts)
    except GARBAGE:  # of somebody else; that it is full is certain
        return ""


def _read_fullness(
    acquisition: RedisAcquisition,
    node: bytes,
    value: Any,
    held: int,
    written: Any,
    oldest: Iterable[bytes] = (),
) -> str:
    if not node:
        return ""
    limit = acquisition.limit
    waiting, paused_for = read_waiting(written)
    tier, key = read_node(node)
    need = acquisition.needs[tier] if acquisition.needs else 1
    if acquisition.record.is_semaphore:
        return messages.occupancy(
            value=value or limit.value,
            held=held,
            waiting=waiting,
            oldest=_oldest_holders(oldest),
            paused_for=paused_for,
        )
    if paused_for:
        why = f"{messages.paused(paused_for)}, {messages.others_waiting(waiting)}"
    elif isinstance(value, bytes):
        rate = read_value(value.decode())
        why = messages.what_is_left(most_of(rate) - held, rate, need, waiting)
    else:
        why = messages.occupancy(value=value, held=held, waiting=waiting)
        if need > 1:
            why += f", and {need} are needed"
    return blame(limit._specs, tier, key, why)


def _oldest_holders(written: Iterable[bytes]) -> str:
    try:
        parts = (each.decode().split(" ", 1) for each in written)
        return messages.oldest_holders((*read_owner(owner), float(age)) for age, owner in parts)
    except GARBAGE:
        return ""


def read_closed(closed: int, reason: bytes) -> Closure | None:
    """Return what a script that inspects a name says: 0 is open, 2 closed for a reason."""
    if not closed:
        return None
    return read_closure([reason] if closed == _WITH_REASON else [])


def read_estimate(text: bytes) -> float | None:
    return float(text) if text else None


def read_waiting(written: int | bytes) -> tuple[int, float]:
    """Return how many wait, and for how many seconds it is paused, from a number or "number ms"."""
    if isinstance(written, int):
        return written, 0.0
    waiting, ms = map(int, written.split())
    return waiting, ms / 1000


# ---------------------------------------------------------------------------- releases


def release_args(
    record: NameRecord, token: str, items: Sequence[str], *, count: bool = False
) -> list[Any]:
    """Return the arguments of a release; ``token`` is that of the loop client that calls."""
    return [b"", b"", token, record.pattern, b"count" if count else b"", *items]


@lru_cache(1_000)
def _release_template(keys: tuple[bytes, ...], token: str, pattern: bytes) -> bytes:
    """Return the beginning of a packed release of one item that counts nothing."""
    return _pack_call(RELEASE, keys, 6, b"", b"", token, pattern, b"")


def pack_release(record: NameRecord, token: str, item: str) -> bytes:
    template = _release_template(record.keys.all, token, record.pattern)
    return template + _pack_word(item.encode())


def split_release(
    record: NameRecord, reply: list[Any], *, count: bool
) -> tuple[Sequence[Any], list[bytes]]:
    """Return the counts in the reply to a release, if they were asked for, and the messages."""
    end = 1 + (5 if record.is_semaphore else 4) * count
    return reply[1:end], reply[end:]


# ---------------------------------------------------------------------------- the others

# Of each name: how long its process may be silent, the ids of holders, those of waiters.
Heartbeats = Sequence[tuple["NameRecord", float, Sequence[str], Sequence[str]]]


def heartbeat_call(
    shared: SharedClient, token: str | bytes, beats: Heartbeats
) -> tuple[list[bytes], list[Any]]:
    """Return the keys and the arguments of one heartbeat for some names of one namespace."""
    keys: list[bytes] = []
    args: list[Any] = [b"", shared.names_key(beats[0][0]), token]
    for record, interval, holders, waiters in beats:
        keys += record.keys.all
        args += (interval, record.pattern, len(holders), len(waiters), *holders, *waiters)
    return keys, args


def inspect_args(limit: RedisBackend, what: str, start: str | bytes) -> list[Any]:
    shared, record = limit._attached()
    return [b"", shared.names_key(record), record.pattern, what, start]


def control_args(limit: RedisBackend, token: str, declared: str, *words: Any) -> list[Any]:
    """Return the arguments of a verb; "?" as ``declared`` if it doesn't matter what is in use."""
    shared, record = limit._attached()
    first = (b"", shared.names_key(record), token, record.pattern)
    return [*first, limit._interval, limit._shape, declared, *words]


ANY = "?"  # declared by an object that was made for a name, whatever its values are

# The verbs for which a limit must be open, and have the values that the object declares.
NEED_OPEN = frozenset({"resize", "freeze", "thaw", "pause"})

# How many values follow the word of a reply, if there are any.
_VALUES = {"resize": 1, "freeze": 2, "thaw": 2, "settle": 1, "kick": 1, "reopen": 1, "forget": 1}


def split_control(verb: str, reply: list[Any]) -> tuple[list[Any], list[bytes]]:
    """Return the word of a reply with its values, and the messages that follow."""
    count = _VALUES.get(verb, 0) if reply[0] == b"done" else 2 * (reply[0] == b"outside")
    return reply[: 1 + count], reply[1 + count :]
