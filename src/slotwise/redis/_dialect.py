"""What differs between the kinds of limits on Redis: scripts, requests and replies.

Batching, waiting, heartbeats, loss and clean-up ask a `Dialect` and know no kind. There
are two: `_semaphore_dialect` and `_path_dialect`. Nothing here sends anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from slotwise._core.messages import limit_full
from slotwise.redis._net.call import pack_half
from slotwise.redis._scripts import Script, load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slotwise._core.overload import Overload
    from slotwise.errors import AcquireTimeout
    from slotwise.redis._acquisition import RedisAcquisition
    from slotwise.redis._keys import KeySet
    from slotwise.redis._shared_client import NameRecord


class Released(NamedTuple):
    """The result of a release: whether the acquisition was held, or was waiting."""

    held: bool
    waited: bool = False
    counts: Sequence[Any] = ()  # how full it is, if that was asked for: for `Dialect.timeout_error`


HELD, NOT_HELD = Released(True), Released(False)


class ControlScripts(NamedTuple):
    """The scripts that change, or end, what everybody shares."""

    resize: Script
    freeze: Script
    pause: Script
    close: Script
    reopen: Script
    kick: Script
    forget: Script

    @classmethod
    def of(cls, folder: str) -> ControlScripts:
        return cls(*[load(f"{folder}/{name}") for name in cls._fields])


class Dialect(ABC):
    """How the scripts of one kind of limit are called, and what their replies mean."""

    kind: ClassVar[str]
    control: ClassVar[ControlScripts]
    heartbeat: ClassVar[Script]
    request: ClassVar[Script]
    request_many: ClassVar[Script]
    release: ClassVar[Script]
    release_many: ClassVar[Script]

    # Which argument tells that a request may have been made before.
    request_again_at: ClassVar[int]
    request_many_again_at: ClassVar[int]

    # How many requests, or releases, one call may carry: the server does nothing else
    # meanwhile, for about 5 ms.
    most_at_once: ClassVar[int]

    # What it costs to renew one holder or waiter, a member of a semaphore's key being 1.
    heartbeat_cost: ClassVar[float]

    # Whether everybody waits in one queue: while somebody does, a newcomer has to wait in any
    # case, so that its request can wait a moment to be sent with others.
    has_one_queue: ClassVar[bool]

    def can_be_id(self, text: str) -> bool:  # noqa: ARG002 - of semaphores, as clients like it
        """Whether an acquisition may have this id; others would mean something else to scripts."""
        return True

    @abstractmethod
    def keys(self, namespace: str, name: str, *, cluster: bool) -> KeySet:
        """The keys of one name."""

    # -------------------------------------------------------------- requests

    @abstractmethod
    def request_args(
        self, acquisition: RedisAcquisition, *, wait: bool, again: bool, due: bytes
    ) -> list[Any]:
        """The arguments of ``request``."""

    @abstractmethod
    def request_template(self, limit: Any) -> tuple[bytes, ...]:
        """The parts of a packed request that are always the same; see `pack_request`."""

    @abstractmethod
    def pack_request(self, acquisition: RedisAcquisition, due: bytes) -> bytes:
        """A request that may wait and has no label, packed: most of it is always the same."""

    @abstractmethod
    def request_many_args(self, batch: Sequence[RedisAcquisition], due: bytes) -> list[Any]:
        """The arguments of ``request_many`` for requests of one object, for one slot each."""

    @abstractmethod
    def on_reply(self, acquisition: RedisAcquisition, reply: list[Any]) -> list[bytes]:
        """Tell an acquisition the reply to its request; returns the messages that follow it."""

    @abstractmethod
    def refused_error(self, acquisition: RedisAcquisition, value: int, tier: int = 0) -> Exception:
        """The error for a request of more than ``value`` slots, of that tier if there are tiers."""

    @abstractmethod
    def timeout_error(
        self, acquisition: RedisAcquisition, waited: float, counts: Sequence[Any]
    ) -> AcquireTimeout:
        """Return the error for a wait that timed out, with the counts of `Released` or a reply."""

    @abstractmethod
    def share_requested(self, acquisition: RedisAcquisition) -> str:
        """How many slots of how many it requested, for a message; may be empty."""

    # -------------------------------------------------------------- releases

    @abstractmethod
    def release_args(
        self, record: NameRecord, token: str, interval: float, acquisition_id: str, *, count: bool
    ) -> list[Any]:
        """The arguments of ``release``; ``token`` is that of the loop client that calls."""

    @abstractmethod
    def release_template(
        self, record: NameRecord, token: str, interval: float
    ) -> tuple[bytes, bytes]:
        """What comes before and after the id in a packed release that counts nothing."""

    @abstractmethod
    def release_many_args(
        self, record: NameRecord, token: str, interval: float, ids: list[str]
    ) -> list[Any]:
        """The arguments of ``release_many``."""

    @abstractmethod
    def read_release(self, reply: list[Any]) -> tuple[Released, list[bytes]]:
        """What a reply of ``release`` says, and the messages that follow it."""

    def read_release_many(self, reply: list[Any]) -> tuple[bytes, list[bytes]]:
        """For each id a digit, 1 if it was held, and the messages that follow."""
        return reply[0], reply[1:]


def write_wait(overload: Overload | None, timeout: float | None = None) -> str:
    """How a request says that it waits, and under which conditions: see lua/*/request.lua."""
    if overload is None:
        return "wait"
    shed = f" shed {'-' if timeout is None else timeout}" if overload.sheds else ""
    total, *tiers = ["-" if m is None else str(m) for m in (overload.max_waiting, *overload.tiers)]
    return f"wait {total} {','.join(tiers)}".rstrip() + shed


def fail_full(
    acquisition: RedisAcquisition, full: str, waiting: int, estimate: bytes, is_late: int
) -> None:
    """Fail a request that may not wait, as the script has replied."""
    acquisition.fail(
        limit_full(
            acquisition.limit._title,
            full,
            waiting=waiting,
            estimate=read_estimate(estimate),
            timeout=acquisition.timeout if is_late else None,
        )
    )


def read_estimate(text: bytes) -> float | None:
    return float(text) if text else None


def pack_call(script: Script, keys: Sequence[bytes], count: int, *words: Any) -> bytes:
    """Return the beginning of a packed call with ``count`` arguments: up to those given."""
    first = pack_half((b"EVALSHA", script.sha, len(keys), *keys, *words))
    return b"*%d\r\n" % (3 + len(keys) + count) + first


def pack_word(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


def read_waiting(written: int | bytes) -> tuple[int, float]:
    """Return how many wait, and for how many seconds it is paused, from a number or "number ms"."""
    if isinstance(written, int):
        return written, 0.0
    waiting, ms = map(int, written.split())
    return waiting, ms / 1000
