"""Adaptive limits in virtual time: a service behind a limit, scenarios, and rivals."""
