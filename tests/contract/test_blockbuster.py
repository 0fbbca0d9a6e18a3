"""No limit in memory, and none on a server, blocks the event loop, as blockbuster sees it.

In a process of its own, from the first acquisition on: that is when files would be read.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

IN_MEMORY = """
async def main():
    semaphore = MemorySemaphore(1, name="api", ttl=60)
    async with semaphore.hold():
        with suppress(TimeoutError):
            await semaphore.acquire(timeout=0.01)
    async with Tiers(Tier("tenant", 1, keyed=True), Tier("all", 2)).hold(tenant="acme"):
        pass
    await RateLimit("crm", Rate(5, per=1)).acquire()
"""
ON_A_SERVER = """
async def main():
    semaphore = RedisSemaphore(1, name="api", config=RedisConfig(sys.argv[1]))
    async with semaphore.hold():
        with suppress(TimeoutError):
            await semaphore.acquire(timeout=0.01)
    tiers = Tiers(Tier("tenant", 1, keyed=True), Tier("all", 2), name="t", url=sys.argv[1])
    async with tiers.hold(tenant="acme"):
        pass
"""


@pytest.mark.soak  # blockbuster patches builtins, and has once taken the interpreter with it
@pytest.mark.parametrize("program", [IN_MEMORY, ON_A_SERVER], ids=["memory", "redis"])
def test_the_first_acquisition_does_not_block_the_event_loop(
    program: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("server").url if program is ON_A_SERVER else ""
    code = (
        "import asyncio, os, sys\n"
        "from contextlib import suppress\n"
        "from blockbuster import blockbuster_ctx\n"
        "from slotwise import *\n"
        f"{program}\n"
        "with blockbuster_ctx():\n"
        "    asyncio.run(main())\n"
        "    print('done', flush=True)\n"
        "    os._exit(0)\n"  # a patched interpreter doesn't always survive its end
    )
    done = subprocess.run(
        [sys.executable, "-c", code, url], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
