"""The names of the keys of a limit, and their hash slots.

Nothing here talks to a server.
"""

from __future__ import annotations

import binascii
import itertools
from functools import cache

PLACEHOLDER = "@@@ACQUISITION_ID@@@"

# In the order in which our own scripts want them; see lua/rules/state.lua. Of semaphores, all but
# state and numbers are documented.
KINDS = {
    "semaphore": ("state", "main", "waiting_heartbeat", "ttl", "waiting", "numbers", "max"),
    "tiers": (
        *("state", "holders", "waiters", "ttls", "queue", "numbers", "parked", "unfinished"),
        *("refills", "cleanup", "passed", "shares", "taken0", "taken1"),
    ),
}


class KeySet:
    """The keys of one name, as bytes, ready to be sent.

    On Cluster the name is written with braces around it, which puts all keys of a name into one
    hash slot, and so on one shard.
    """

    __slots__ = ("all", "kind", "name", "notification", "slot")

    def __init__(self, namespace: str, kind: str, name: str, *, cluster: bool = False) -> None:
        """``kind`` is "semaphore" or "tiers"."""
        if cluster and name.startswith("}"):
            raise ValueError(f"a name on Redis Cluster must not start with '}}', as {name!r} does")
        self.kind = kind
        self.name = name
        written = f"{{{name}}}" if cluster else name
        self.all = tuple(f"{namespace}:{kind}_{each}:{written}".encode() for each in KINDS[kind])
        tag = f"{written}:" if cluster else ""
        self.notification = f"{namespace}:acquisition_notification:{tag}{PLACEHOLDER}".encode()
        self.slot = hash_slot(self.all[0]) if cluster else None


def names_key(namespace: str, shard: int | None) -> bytes:
    """Where the names of a namespace are noted.

    On Cluster each node has its own, in the hash slot ``shard``, unless the namespace has a hash
    tag of its own: then all names are in that slot.
    """
    key = f"{namespace}:names".encode()
    if shard is not None and b"{" not in key:
        key += b":{%s}" % _tag_of(shard)
    return key


@cache
def _tag_of(slot: int) -> bytes:
    """Some text whose hash slot is ``slot``."""
    for number in itertools.count():
        tag = b"%d" % number
        if binascii.crc_hqx(tag, 0) % 16384 == slot:
            return tag
    raise AssertionError("there is one for every slot")


def hash_slot(key: bytes) -> int:
    """Which of a cluster's 16384 hash slots a key is in."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return binascii.crc_hqx(key, 0) % 16384
