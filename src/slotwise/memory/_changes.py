"""Convert the changes of adaptive values from the process's clock to the wall clock."""

from __future__ import annotations

import time
from collections.abc import Iterable

from slotwise._core.adaptive import Change
from slotwise._wait import clock


def in_epoch_seconds(changes: Iterable[Change]) -> list[Change]:
    """Return changes with epoch seconds instead of seconds of the monotonic clock."""
    epoch = time.time() - clock.now()
    return [Change(each.at + epoch, each.old, each.new, each.reason) for each in changes]
