"""Waiting and waking, for all drivers: the lock of the process, the clock, wakers.

Nothing here decides who gets a slot: `_ledger` does.
"""
