"""When adaptive values of this process have moved, by the wall clock."""

from __future__ import annotations

import time
from collections.abc import Iterable

from slotwise._core.adaptive import Change
from slotwise._wait import clock


def in_epoch_seconds(changes: Iterable[Change]) -> list[Change]:
    """Changes by the clock of this process, as its users get them."""
    epoch = time.time() - clock.now()
    return [Change(each.at + epoch, each.old, each.new, each.reason) for each in changes]
