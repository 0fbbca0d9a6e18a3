"""Limits in tiers, from narrow to wide: per user and in total, in one process or for a fleet."""

from slotwise._core.paths import KeyStats, TierStats
from slotwise._core.rates import Rate
from slotwise.tiers._rate_limit import RateLimit
from slotwise.tiers._slot_manager import SlotManager
from slotwise.tiers._slot_options import SlotOptions, SlotStats
from slotwise.tiers._tier import Tier
from slotwise.tiers._tiers import Tiers

__all__ = [
    "KeyStats",
    "Rate",
    "RateLimit",
    "SlotManager",
    "SlotOptions",
    "SlotStats",
    "Tier",
    "TierStats",
    "Tiers",
]
