"""Connections to Redis servers: opening, multiplexing and reopening them.

redis-py opens the sockets; everything after that is ours, down to one write per tick of the
event loop. Semaphores are unknown here: calls are sent, replies and messages are received.
"""
