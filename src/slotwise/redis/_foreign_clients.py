"""Let foreign clients wake our waiters in their way: by a push to the waiter's list.

A client that knows only the documented protocol grants slots to our waiters too, but knows no
channels. While one holds slots of a semaphore that we wait for, this pops from the lists of all
our waiters there, in one blocking call over a connection of its own. A push is only a hint: the
server is then asked what it has granted.

The heartbeat thread checks such semaphores often enough by itself. This is only faster, so it
gives up quietly on Cluster, where the lists are on several nodes, and for users who may not BLPOP.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from slotwise.errors import BackendError
from slotwise.redis._diagnosis import Refused
from slotwise.redis._net.call import Call
from slotwise.redis._scripts import load

if TYPE_CHECKING:
    from slotwise.redis._shared_client import NameRecord, SharedClient

_PUSH = load("semaphore/end_blocking_call")

# How long to wait on the lists after the last sign of a foreign holder.
_REMEMBERED = 10.0
# The longest blocking call, if the reply timeout allows it.
_BLOCKED = 2.0


class NotificationLists:
    """The blocking call of one process. Except for `seen`, methods run in the heartbeat thread."""

    def __init__(
        self, shared: SharedClient, spawn: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self._shared = shared
        self._spawn = spawn
        self._until: dict[NameRecord, float] = {}  # until when to expect pushes for a name
        self._listening: set[bytes] = set()  # the lists that the current call waits on
        self._own_list = b""  # a push to it ends that call
        self._running = False
        self._refused = False  # this user may not BLPOP

    def seen(self, record: NameRecord) -> None:
        """Note, in any thread, that a foreign client holds slots of a name."""
        self._until[record] = time.monotonic() + _REMEMBERED

    def refresh(self) -> None:
        """Have the lists of all waiters watched whose name has foreign holders."""
        if not self._until or self._refused or self._shared.cluster is not None:
            return
        if not self._running:
            self._running = True
            self._spawn(self._run())
        elif self._listening and not self._listening.issuperset(self._lists()):
            self._listening = set()  # until the next call, with the new lists
            self._shared.client().submit(Call(_PUSH, [self._own_list], [], lambda *_: None))

    def _lists(self) -> dict[bytes, str]:
        now = time.monotonic()
        for record, until in list(self._until.items()):
            if now > until:
                self._until.pop(record, None)
        return {
            record.keys.notification_of(acquisition_id): acquisition_id
            for acquisition_id, waiter in list(self._shared.waiters.items())
            if (record := waiter.record) in self._until and waiter.queued
        }

    async def _run(self) -> None:
        """Pop from the lists until no foreign client has been seen for a while."""
        client = self._shared.client()
        seconds = min(_BLOCKED, self._shared.settings.config.reply_timeout / 2)
        try:
            while True:
                lists = self._lists()
                if not self._until:
                    return
                self._own_list = next(iter(self._until)).keys.notification_of(self._shared.token)
                keys = [self._own_list, *lists]
                self._listening = set(keys)
                popped = await client.blocking_reconnector().command("BLPOP", *keys, f"{seconds:g}")
                if popped is not None and popped[0] in lists:
                    self._shared.dispatch(b"look " + lists[popped[0]].encode())
        except Refused:
            self._refused = True
        except BackendError:
            pass  # the next check starts it again
        finally:
            self._running = False
            self._listening = set()
            client.close_blocking_reconnector()
