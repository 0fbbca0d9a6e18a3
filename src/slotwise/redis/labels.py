"""Labels, which this driver shares with that of processes."""

from __future__ import annotations

from slotwise._labels import Labelled, check_label

__all__ = ["Labelled", "check_label"]
