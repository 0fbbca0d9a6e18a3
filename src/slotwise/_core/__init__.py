"""What every driver shares and callers see: interfaces, results, argument checks.

Nothing here decides who gets a slot (`_ledger` does), and nothing here waits (`_wait` does).
"""
