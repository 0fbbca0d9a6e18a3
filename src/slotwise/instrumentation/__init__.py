"""Instrumentation: hooks that are told what happens to the acquisitions of this process.

    from slotwise.instrumentation import add_hook

    add_hook(lambda event: print(event.kind, event.name, event.waited))

`slotwise.instrumentation.opentelemetry` and `slotwise.instrumentation.prometheus` make metrics
of it. A package can declare a hook as an entry point of the group ``slotwise.hooks``, which
`load_hooks` adds.
"""

from __future__ import annotations

from slotwise._core.event import Event
from slotwise._core.events import KINDS, Hook, add_hook, load_hooks, remove_hook
from slotwise._core.stats import Totals
from slotwise.instrumentation._metrics import drop_totals, keep_totals

__all__ = [
    "KINDS",
    "Event",
    "Hook",
    "Totals",
    "add_hook",
    "drop_totals",
    "keep_totals",
    "load_hooks",
    "remove_hook",
]
