"""Grant slots: the pure state machines that decide who holds, who waits and who is next.

No clock, no lock, no I/O, no task and no logging: drivers have those. Every driver uses the same
ledgers, so each rule about slots is in one place.
"""

from slotwise._ledger.claims import Claim, LineGrant, SlotClaim
from slotwise._ledger.deadlines import NEVER, Deadlines
from slotwise._ledger.ledger import Ledger
from slotwise._ledger.ranges import ranges_of

__all__ = ["NEVER", "Claim", "Deadlines", "Ledger", "LineGrant", "SlotClaim", "ranges_of"]
