"""A value that finds itself: its options, and how it has moved."""

from slotwise._core.adaptive import Adaptive, Change, Errors, Latency

__all__ = ["Adaptive", "Change", "Errors", "Latency"]
