"""Driver 1: the asyncio tasks of any event loop, and the plain threads, of this process."""

from slotwise.memory._semaphore import MemorySemaphore

__all__ = ["MemorySemaphore"]
