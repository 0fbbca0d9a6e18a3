"""The keys of a limit, by what is in them."""

from __future__ import annotations

from slotwise.redis._keys import KINDS as _KINDS
from slotwise.redis._keys import PLACEHOLDER as PLACEHOLDER
from slotwise.redis._keys import KeySet as KeySet

KINDS, PATH_KINDS = _KINDS["semaphore"], _KINDS["tiers"]


class SemaphoreKeys(KeySet):
    """Those of a semaphore."""

    def __init__(self, namespace: str, name: str, *, cluster: bool = False) -> None:
        super().__init__(namespace, "semaphore", name, cluster=cluster)
        self.state, self.main, self.waiting_heartbeat, self.ttl, *more = self.all
        self.waiting, self.numbers, self.max = more


class PathKeys(KeySet):
    """Those of tiers."""

    def __init__(self, namespace: str, name: str, *, cluster: bool = False) -> None:
        super().__init__(namespace, "tiers", name, cluster=cluster)
