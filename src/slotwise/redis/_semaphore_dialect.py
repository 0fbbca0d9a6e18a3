"""SemaphoreDialect: how requests for slots of a semaphore are written, and how replies are read.

The scripts are in lua/semaphore. Nothing here sends anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slotwise._core import messages
from slotwise.redis._adaptive import read_conflict
from slotwise.redis._closing import read_closure
from slotwise.redis._diagnosis import GARBAGE
from slotwise.redis._dialect import (
    HELD,
    ControlScripts,
    Dialect,
    Released,
    fail_full,
    pack_call,
    read_waiting,
    write_wait,
)
from slotwise.redis._inspect import read_owner
from slotwise.redis._keys import SemaphoreKeys
from slotwise.redis._net.call import pack_half
from slotwise.redis._scripts import load

if TYPE_CHECKING:
    from slotwise.errors import AcquireTimeout
    from slotwise.redis._acquisition import RedisAcquisition
    from slotwise.redis._backend import RedisBackend
    from slotwise.redis._shared_client import NameRecord, SharedClient
    from slotwise.redis._slots import RedisSlots


def _owner(limit: RedisBackend, shared: SharedClient) -> str:
    """Return who asks, as lua/base/claim.lua says, without the label."""
    grace = limit.grace
    return f"{shared.owner}/{grace:.3f}" if grace else shared.owner


def _word(acquisition: RedisAcquisition, *, wait: bool) -> str:
    """Return how a request waits, as lua/semaphore/request.lua says."""
    if acquisition.replaces:
        return "replace" if wait else "replace try"
    return write_wait(acquisition.limit._overload, acquisition.timeout) if wait else "try"


def _oldest_holders(written: list[bytes]) -> str:
    """Name the holders that lua/semaphore/oldest_holders.lua has found."""
    try:
        parts = (each.decode().split(" ", 1) for each in written)
        return messages.oldest_holders((*read_owner(owner), float(age)) for age, owner in parts)
    except GARBAGE:  # of somebody else; that it is full is certain
        return ""


class SemaphoreDialect(Dialect):
    """The dialect of `RedisSemaphore`."""

    kind = "semaphore"
    control = ControlScripts.of("semaphore")

    heartbeat = load("semaphore/heartbeat")
    request = load("semaphore/request")
    request_many = load("semaphore/request_many")
    release = load("semaphore/release")
    release_many = load("semaphore/release_many")
    request_again_at = 6
    request_many_again_at = 4
    most_at_once = 200
    heartbeat_cost = 1.0
    has_one_queue = True

    def keys(self, namespace: str, name: str, *, cluster: bool) -> SemaphoreKeys:
        return SemaphoreKeys(namespace, name, cluster=cluster)

    # -------------------------------------------------------------- requests

    def request_args(
        self, acquisition: RedisAcquisition, *, wait: bool, again: bool, due: bytes
    ) -> list[Any]:
        limit = acquisition.limit
        return [
            b"",
            acquisition.acquisition_id,
            limit._declared,
            acquisition.interval,
            b"" if acquisition.ttl is None else acquisition.ttl,
            _word(acquisition, wait=wait),
            b"again" if again else b"",
            f"{_owner(limit, acquisition.shared)} {acquisition.label}",
            acquisition.record.keys.notification,
            due,
        ]

    def request_template(self, limit: RedisSlots) -> tuple[bytes, bytes]:
        shared, record = limit._attached()
        first = pack_call(self.request, record.keys.all, 10, b"")
        ttl = b"" if limit._ttl is None else limit._ttl
        words = limit._declared, limit._interval, ttl, write_wait(limit._overload), b""
        return first, pack_half((*words, f"{_owner(limit, shared)} ", record.keys.notification))

    def pack_request(self, acquisition: RedisAcquisition, due: bytes) -> bytes:
        first, middle = acquisition.limit._request_template()
        own = acquisition._acquisition_id.encode()
        return b"%b$%d\r\n%b\r\n%b$%d\r\n%b\r\n" % (first, len(own), own, middle, len(due), due)

    def request_many_args(self, batch: Sequence[RedisAcquisition], due: bytes) -> list[Any]:
        first = batch[0]
        return [
            b"",
            first.limit._declared,
            first.interval,
            b"" if first.ttl is None else first.ttl,
            b"",
            f"{_owner(first.limit, first.shared)} ",
            due,
            first.record.keys.notification,
            write_wait(first.limit._overload),
            *[each._acquisition_id for each in batch],
        ]

    def on_reply(self, acquisition: RedisAcquisition, reply: list[Any]) -> list[bytes]:
        word = reply[0]
        if word == b"granted":
            acquisition.record.learn(reply[3], acquisition.limit._declared)
            acquisition.on_granted(reply[1], reply[2])
            return reply[4:]
        if word == b"queued":
            acquisition.record.learn(reply[1], acquisition.limit._declared)
            acquisition.on_queued(reply[2])
            return reply[3:]
        if word == b"busy":
            acquisition.fail(self.timeout_error(acquisition, 0.0, reply[1:5]))
            return reply[5:]
        if word == b"full":
            value, held, written, estimate, is_late = reply[1:6]
            waiting, paused_for = read_waiting(written)
            occupancy = messages.occupancy(
                value=value, held=held, waiting=waiting, paused_for=paused_for
            )
            fail_full(acquisition, occupancy, waiting, estimate, is_late)
            return reply[6:]
        if word == b"closed":
            acquisition.fail(acquisition.limit._closed_error(read_closure(reply[1:])))
        elif word == b"conflict":
            declared = acquisition.limit._declared
            acquisition.fail(read_conflict(acquisition.record.name, declared, reply[1:]))
        else:
            acquisition.fail(self.refused_error(acquisition, reply[1]))
        return []

    def refused_error(
        self,
        acquisition: RedisAcquisition,
        value: int,
        tier: int = 0,  # noqa: ARG002
    ) -> Exception:
        return messages.too_many_slots(acquisition.limit._title, acquisition.slots, value)

    def timeout_error(
        self, acquisition: RedisAcquisition, waited: float, counts: Sequence[Any]
    ) -> AcquireTimeout:
        value, held, written, oldest = counts
        value = value or acquisition.limit.value
        waiting, paused_for = read_waiting(written)
        occupancy = messages.occupancy(
            value=value,
            held=held,
            waiting=waiting,
            oldest=_oldest_holders(oldest),
            paused_for=paused_for,
        )
        return messages.no_slot(acquisition.limit._title, waited, occupancy)

    def share_requested(self, acquisition: RedisAcquisition) -> str:
        return f" for {acquisition.slots} of {acquisition.limit.value}"

    # -------------------------------------------------------------- releases

    def release_args(
        self, record: NameRecord, token: str, interval: float, acquisition_id: str, *, count: bool
    ) -> list[Any]:
        counted = b"count" if count else b""
        return [b"", acquisition_id, token, interval, record.keys.notification, counted]

    def release_template(
        self, record: NameRecord, token: str, interval: float
    ) -> tuple[bytes, bytes]:
        first = pack_call(self.release, record.keys.all, 6, b"")
        return first, pack_half((token, interval, record.keys.notification, b""))

    def release_many_args(
        self, record: NameRecord, token: str, interval: float, ids: list[str]
    ) -> list[Any]:
        return [b"", token, interval, record.keys.notification, *ids]

    def read_release(self, reply: list[Any]) -> tuple[Released, list[bytes]]:
        if reply == _ONE_RELEASED:  # nearly always
            return HELD, []
        return Released(reply[0] > 0, reply[1] > 0, reply[2] or ()), reply[3:]


# The reply to a release of one held slot, without counts and messages.
_ONE_RELEASED = [1, 0, 0]

SEMAPHORE = SemaphoreDialect()
