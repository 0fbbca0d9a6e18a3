"""Find names on a server by its keys, in steps of SCAN."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from slotwise.errors import BackendError
from slotwise.redis._diagnosis import Refused, is_of_one_name

if TYPE_CHECKING:
    from slotwise.redis._call_limits import CallLimits
    from slotwise.redis._config import RedisConfig
    from slotwise.redis._endpoint import Address
    from slotwise.redis._loop_client import LoopClient
    from slotwise.redis._shared_client import SharedClient

T = TypeVar("T")

_KEYS_A_STEP = 500  # scanned; the server serves nobody else meanwhile


class KeyKind(NamedTuple):
    """Keys to look for: ``namespace:prefix:name``, even if somebody has replaced one.

    The call that reads the name reports one of another type.
    """

    prefix: str
    stopped_only: bool = False  # of the states, those that say that the name is closed or paused


class NameKind(NamedTuple):
    """A kind of limit, by the keys that those in use have."""

    words: str  # what messages call one whose name is unknown
    keys: Sequence[KeyKind]


async def scan_names(
    shared: SharedClient, config: RedisConfig, kind: NameKind
) -> tuple[list[str], list[BackendError]]:
    """Return the names that have such a key, and the errors of those that are not in UTF-8."""
    names: dict[str, None] = {}
    unnamed: dict[bytes, None] = {}
    scans = [
        _scan_one(shared, config, each, address)
        for address in await shared.client().primaries()
        for each in kind.keys
    ]
    # All at once: each takes as many replies as the whole key space has pages.
    for written in itertools.chain(*await asyncio.gather(*scans)):
        try:
            names[written.decode()] = None
        except UnicodeDecodeError:
            unnamed[written] = None
    why = f"{shared.endpoint} has {kind.words} whose name is not text"
    return list(names), [Refused(f"{why}: {key!r}") for key in unnamed]


async def ask_each(
    names: Iterable[str], ask: Callable[[str], Awaitable[T]], *, at_once: int, words: str = ""
) -> tuple[dict[str, T], list[BackendError]]:
    """Ask for each of the names, ``at_once`` in one write; return the replies by name.

    Also return the errors of names that can't be read: the others can. ``words`` go before the
    name there.

    Raises:
        BackendError: the server can't be asked.
    """
    found: dict[str, T] = {}
    errors: list[BackendError] = []
    wanted = list(dict.fromkeys(names))
    for at in range(0, len(wanted), at_once):
        some = wanted[at : at + at_once]
        replies = await asyncio.gather(*map(ask, some), return_exceptions=True)
        for name, reply in zip(some, replies, strict=True):
            if not isinstance(reply, BaseException):
                found[name] = reply
            elif is_of_one_name(reply):
                errors.append(Refused(f"{words}{name!r} can't be read: {reply}"))
            else:
                raise reply
    return found, errors


async def _scan_one(
    shared: SharedClient, config: RedisConfig, kind: KeyKind, address: Address | None
) -> list[bytes]:
    """Return the names in the keys of one kind on one node."""
    client = shared.client()
    prefix = f"{config.namespace}:{kind.prefix}:"
    pattern = "".join(f"\\{char}" if char in "*?[]^\\" else char for char in prefix) + "*"
    found: list[bytes] = []
    cursor = b"0"
    while True:
        cursor, keys = await client.command(
            *("SCAN", cursor, "MATCH", pattern, "COUNT", _KEYS_A_STEP),
            address=address,
            limits=config.limits,
        )
        if kind.stopped_only:
            keys = await _stopped_of(client, keys, address, config.limits)
        for key in keys:
            written = key.removeprefix(prefix.encode())
            found.append(written[1:-1] if shared.cluster is not None else written)
        if cursor == b"0":
            return found


async def _stopped_of(
    client: LoopClient, keys: list[bytes], address: Address | None, limits: CallLimits
) -> list[bytes]:
    """Return the states that say that the name is closed or paused, or that are not a hash."""
    asked = (
        client.command("HMGET", key, ".closed", ".paused", address=address, limits=limits)
        for key in keys
    )
    # One that moved to another node meanwhile is asked for there.
    replies = await asyncio.gather(*asked, return_exceptions=True)
    return [
        key
        for key, reply in zip(keys, replies, strict=True)
        if (isinstance(reply, list) and any(reply)) or is_of_one_name(reply)
    ]
