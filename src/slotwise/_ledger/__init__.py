"""The pure state machine of a semaphore: who holds, who waits, who is next.

No clock, no lock, no I/O, no task and no logging: drivers bring those. Every
driver asks the same ledger, so that a rule about slots stands in one place.
"""

from slotwise._ledger.claims import Claim, LineGrant
from slotwise._ledger.deadlines import NEVER, Deadlines
from slotwise._ledger.ledger import Ledger
from slotwise._ledger.ranges import ranges_of

__all__ = ["NEVER", "Claim", "Deadlines", "Ledger", "LineGrant", "ranges_of"]
