"""Limits that the processes of one machine share, without a server."""

from slotwise.errors import UnknownSemaphore
from slotwise.processes._semaphore import ProcessSemaphore

__all__ = ["ProcessSemaphore", "UnknownSemaphore"]
