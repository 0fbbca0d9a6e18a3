"""PathDialect: how requests for a path through tiers are written, and how replies are read.

The scripts are in lua/tiers. Nothing here sends anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slotwise._core import messages
from slotwise._core.outcomes import too_many_for_adaptive
from slotwise._core.paths import Needs, Path, blame, most_of, part_of
from slotwise._core.rates import Rate
from slotwise.errors import AcquireTimeout
from slotwise.redis._closing import read_closure
from slotwise.redis._diagnosis import GARBAGE
from slotwise.redis._dialect import (
    ControlScripts,
    Dialect,
    Released,
    fail_full,
    pack_call,
    pack_word,
    read_waiting,
    write_wait,
)
from slotwise.redis._path_keys import PathKeys, read_node, read_value
from slotwise.redis._scripts import load

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition
    from slotwise.redis._paths import RedisPaths
    from slotwise.redis._shared_client import NameRecord


class PathDialect(Dialect):
    """The dialect of `RedisPaths`. Each script takes one request, or one release, or many."""

    kind = "tiers"
    control = ControlScripts.of("tiers")

    heartbeat = load("tiers/heartbeat")
    request = request_many = load("tiers/request")
    release = release_many = load("tiers/release")
    request_again_at = request_many_again_at = 6
    most_at_once = 60
    heartbeat_cost = 1.5
    has_one_queue = False  # another key may have a free slot

    def can_be_id(self, text: str) -> bool:
        return not text.startswith("~") and text.split() == [text]

    def keys(self, namespace: str, name: str, *, cluster: bool) -> PathKeys:
        return PathKeys(namespace, name, cluster=cluster)

    # -------------------------------------------------------------- requests

    def request_args(
        self, acquisition: RedisAcquisition, *, wait: bool, again: bool, due: bytes
    ) -> list[Any]:
        return [
            *self._first_args(acquisition),
            write_wait(acquisition.limit._overload, acquisition.timeout) if wait else b"try",
            b"again" if again else b"",
            f"{acquisition.shared.owner} {acquisition.label}",
            due,
            acquisition.written_values,
            acquisition.acquisition_id,
            acquisition.written_path,
        ]

    def request_many_args(self, batch: Sequence[RedisAcquisition], due: bytes) -> list[Any]:
        first = batch[0]
        values = " ".join(filter(None, (each.written_values for each in batch)))
        args = [*self._first_args(first), write_wait(first.limit._overload), b""]
        args += [f"{first.shared.owner} ", due, values]
        for each in batch:
            args += (each._acquisition_id, each.written_path)
        return args

    def _first_args(self, acquisition: RedisAcquisition) -> list[Any]:
        limit: Any = acquisition.limit
        ttl = b"-" if acquisition.ttl is None else acquisition.ttl
        return [b"", limit._shape, limit._declared, acquisition.interval, ttl]

    def request_template(self, limit: RedisPaths) -> tuple[bytes, bytes]:
        shared, record = limit._attached()
        ttl = b"-" if limit._ttl is None else limit._ttl
        words = (b"", limit._shape, limit._declared, limit._interval, ttl)
        more = write_wait(limit._overload), b"", f"{shared.owner} "
        first = pack_call(self.request, record.keys.all, 12, *words, *more)
        return first, b""

    def pack_request(self, acquisition: RedisAcquisition, due: bytes) -> bytes:
        first, _ = acquisition.limit._request_template()
        own = acquisition._acquisition_id.encode()
        return (
            first
            + pack_word(due)
            + pack_word(acquisition.written_values.encode())
            + pack_word(own)
            + pack_word(acquisition.written_path.encode())
        )

    def on_reply(self, acquisition: RedisAcquisition, reply: list[Any]) -> list[bytes]:
        word = reply[0]
        limit: Any = acquisition.limit
        if word == b"granted":
            acquisition.on_granted(reply[1], reply[2])
            return reply[3:]
        if word == b"queued":
            acquisition.on_queued(reply[1])
            return reply[2:]
        if word == b"busy":
            acquisition.fail(self.timeout_error(acquisition, 0.0, reply[1:5]))
            return reply[5:]
        if word == b"full":
            fullness = self._fullness(acquisition, reply[1:5])
            fail_full(acquisition, fullness, *reply[5:8])
            return reply[8:]
        if word == b"refused":
            acquisition.fail(self.refused_error(acquisition, *reply[1:3]))
            return reply[3:]
        if word == b"closed":
            acquisition.fail(limit._closed_error(read_closure(reply[1:])))
        else:
            acquisition.fail(limit._conflict(reply[1:3]))
        return []

    def refused_error(self, acquisition: RedisAcquisition, value: int, tier: int = 0) -> Exception:
        return never_fits(acquisition.limit, acquisition.path, acquisition.needs, value, tier)

    def timeout_error(
        self, acquisition: RedisAcquisition, waited: float, counts: Sequence[Any]
    ) -> AcquireTimeout:
        title, why = acquisition.limit._title, "it came just too late"
        return messages.no_slot(title, waited, self._fullness(acquisition, counts) or why)

    def _fullness(self, acquisition: RedisAcquisition, counts: Sequence[Any]) -> str:
        """Return which tier has no room, and why; nothing if all have."""
        try:
            return _read_fullness(acquisition, *counts)
        except GARBAGE:  # of somebody else; that it is full is certain
            return ""

    def share_requested(self, acquisition: RedisAcquisition) -> str:  # noqa: ARG002
        return ""  # each tier has its own value

    # -------------------------------------------------------------- releases

    def release_args(
        self,
        record: NameRecord,
        token: str,
        interval: float,
        acquisition_id: str,
        *,
        count: bool,  # noqa: ARG002 - it always counts
    ) -> list[Any]:
        return self.release_many_args(record, token, interval, [acquisition_id])

    def release_template(
        self,
        record: NameRecord,
        token: str,
        interval: float,  # noqa: ARG002
    ) -> tuple[bytes, bytes]:
        return pack_call(self.release, record.keys.all, 3, b"", token), b""

    def release_many_args(
        self,
        record: NameRecord,  # noqa: ARG002
        token: str,
        interval: float,  # noqa: ARG002 - there are no foreign waiters here
        ids: list[str],
    ) -> list[Any]:
        return [b"", token, *ids]

    def read_release(self, reply: list[Any]) -> tuple[Released, list[bytes]]:
        return Released(reply[0] == b"1", reply[0] == b"2", reply[1:5]), reply[5:]

    def read_release_many(self, reply: list[Any]) -> tuple[bytes, list[bytes]]:
        return reply[0], reply[5:]


def _read_fullness(
    acquisition: RedisAcquisition, node: bytes, value: Any, held: int, written: Any
) -> str:
    if not node:
        return ""
    limit: Any = acquisition.limit
    waiting, paused_for = read_waiting(written)
    tier, key = read_node(node)
    need = acquisition.needs[tier] if acquisition.needs else 1
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


def never_fits(limit: Any, path: Path, needs: Needs | None, value: int, tier: int) -> ValueError:
    """The error for a request of more than ``value`` of a tier."""
    need = 1 if needs is None else needs[tier]
    which = part_of(limit._specs, limit._name, tier, path[tier])
    adaptive = limit._specs[tier].adaptive
    if adaptive is not None:
        return too_many_for_adaptive(which, need, adaptive)
    if isinstance(limit._specs[tier].value, Rate):
        return messages.cost_above_burst(which, need, value)
    return messages.too_many_slots(which, need, value)


PATHS = PathDialect()
