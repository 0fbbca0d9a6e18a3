"""Convert the adaptation of a value to what snapshots have, or back: rules, fields and changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slotwise._core.adaptive import Adaptive, Change

if TYPE_CHECKING:
    from slotwise._ledger.adaptation import Adaptation


def write_adaptation(known: Adaptation | None) -> list[Any] | None:
    if known is None:
        return None
    changes = [[each.at, each.old, each.new, each.reason] for each in known.changes]
    return [known.options.written, known.dump(), changes]


def read_adaptation(written: list[Any]) -> Adaptation:
    """Return what `write_adaptation` was given."""
    from slotwise._ledger.adaptation import adaptation  # most values are fixed

    rules, dump, changes = written
    known = adaptation(Adaptive.read(rules), 0)
    known.restore(dump)
    known.changes += [Change(*change) for change in changes]
    known.take_change()  # whoever made it has reported it
    return known
