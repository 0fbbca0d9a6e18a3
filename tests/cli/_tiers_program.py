"""A program that asks for tiers, one acquisition for each word, and prints what becomes of them.

``python -m tests.cli._tiers_program URL NAME acme acme other`` asks for tenant acme twice, then for
other, each when it is known what became of the one before. Two slots of a tenant, three of all.
"""

from __future__ import annotations

import asyncio
import sys

from slotwise import SemaphoreClosed, Tier, Tiers


async def main(url: str, name: str, *tenants: str) -> None:
    tiers = Tiers(Tier("tenant", 2, keyed=True), Tier("all", 3), name=name, url=url)
    async with asyncio.TaskGroup() as group:
        for number, tenant in enumerate(tenants, 1):
            group.create_task(_use(tiers, tenant))
            while len(await tiers.holders()) + len(await tiers.waiters()) < number:
                await asyncio.sleep(0.01)
        _tell("ready")


async def _use(tiers: Tiers, tenant: str) -> None:
    try:
        acquired = await tiers.acquire(tenant=tenant, label=f"job of {tenant}")
    except SemaphoreClosed as closed:
        _tell(f"rejected {tenant}: {closed.reason}")
        return
    _tell(f"held {tenant}")
    await acquired.lost
    _tell(f"lost {tenant}: {acquired.lost.reason}")


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
