"""Driver 2: the semaphores of a fleet, kept by a Redis server."""

from slotwise.redis.config import RedisConfig
from slotwise.redis.semaphore import RedisSemaphore
from slotwise.values import Claimant

__all__ = ["Claimant", "RedisConfig", "RedisSemaphore"]
