"""What looking at a limit returns: how full it is, who holds and waits, and why."""

from slotwise._core.explain import Explanation, Lack
from slotwise._core.stats import Claimant, SemaphoreStats, Totals

__all__ = ["Claimant", "Explanation", "Lack", "SemaphoreStats", "Totals"]
