"""Connections to a Redis server: opening, multiplexing and reopening them.

Nothing here knows semaphores: calls go out, replies and messages come in.
"""
