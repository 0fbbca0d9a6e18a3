"""Connections to Redis servers: open, multiplex and reopen them.

redis-py opens the sockets; everything after that is ours, down to one write per tick of the
event loop. Nothing here knows about semaphores: calls are sent, replies and messages received.
"""
