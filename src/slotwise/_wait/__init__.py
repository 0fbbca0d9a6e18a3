"""Waiting and waking, once for all drivers: the lock, the clock and its alarms, wakers.

Nothing here decides who gets a slot: `_ledger` does.
"""
