"""Driver 3: the processes of one machine, without a server."""

from slotwise.processes.semaphore import ProcessSemaphore
from slotwise.processes.words import UnknownSemaphore

__all__ = ["ProcessSemaphore", "UnknownSemaphore"]
