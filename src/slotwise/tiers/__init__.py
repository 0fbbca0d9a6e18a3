"""Limits in tiers, from narrow to wide: per user and then for all, on one machine or on a fleet."""

from slotwise.paths import KeyStats, TierStats
from slotwise.tiers.slot_manager import SlotManager
from slotwise.tiers.slot_options import SlotOptions, SlotStats
from slotwise.tiers.tier import Tier
from slotwise.tiers.tiers import Tiers

__all__ = [
    "KeyStats",
    "SlotManager",
    "SlotOptions",
    "SlotStats",
    "Tier",
    "TierStats",
    "Tiers",
]
