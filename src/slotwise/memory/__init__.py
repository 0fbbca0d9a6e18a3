"""The memory driver: limits for the tasks of all event loops, and the threads, of this process."""

from slotwise.memory._semaphore import MemorySemaphore

__all__ = ["MemorySemaphore"]
