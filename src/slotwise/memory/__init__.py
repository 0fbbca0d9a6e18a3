"""The memory driver: limits for the tasks and threads of this process."""

from slotwise.memory._semaphore import MemorySemaphore

__all__ = ["MemorySemaphore"]
