"""Grant slots: the pure state machine that decides who holds, who waits and who is next.

No clock, no lock, no I/O, no task and no logging: drivers have those. Every driver uses the same
ledger, so each rule about slots is in one place.
"""

from slotwise._ledger.deadlines import NEVER, Deadlines

__all__ = ["NEVER", "Deadlines"]
