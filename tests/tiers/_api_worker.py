"""One of several processes that share an API's limits on this machine, in real time.

python -m tests.tiers._api_worker URL SECONDS SEED: prints what the ledger of this process, which
follows what all of them do, has taken of the rates: [when, units, whether by a grant, tier].
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence

from slotwise import Rate, Tier, Tiers
from slotwise._ledger.rate_nodes import RateNode

REQUESTS, TOKENS = Rate(300, per=1, burst=10), Rate(20_000, per=1, burst=2_000)


def record() -> list[tuple[float, int, bool, int]]:
    taken: list[tuple[float, int, bool, int]] = []
    charge, take = RateNode.charge, RateNode.take
    is_grant = False

    def recorded_take(node: RateNode, need: int, now: float = 0.0) -> Sequence[range]:
        nonlocal is_grant
        is_grant = True
        try:
            return take(node, need, now)
        finally:
            is_grant = False

    def recorded_charge(node: RateNode, units: int, now: float) -> None:
        taken.append((now, units, is_grant, node.tier))
        charge(node, units, now)

    RateNode.take, RateNode.charge = recorded_take, recorded_charge  # type: ignore[method-assign]
    return taken


async def main(url: str, seconds: float, dice: random.Random) -> None:
    taken = record()
    api = Tiers(
        Tier("tenant", 3, keyed=True),
        Tier("requests", rate=REQUESTS),
        Tier("tokens", rate=TOKENS),
        Tier("all", 8),
        name="api",
        url=url,
    )
    end = time.monotonic() + seconds

    async def work() -> None:
        while time.monotonic() < end:
            cost = dice.randint(1, 400)
            async with api.cm(tenant=f"{dice.randrange(4)}", tokens=cost) as acquired:
                await asyncio.sleep(dice.uniform(0, 0.01))
                if dice.random() < 0.7:
                    acquired.settle(tokens=dice.randint(0, 500))

    await asyncio.gather(*[work() for _ in range(10)])
    json.dump(taken, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), random.Random(int(sys.argv[3]))))
