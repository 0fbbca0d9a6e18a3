"""Four processes with fifty tasks each call an API with limits, on a real server, for a minute.

The server writes down what is taken of a rate, and when, in the order in which it is; that is
checked by `_windows`. Each process writes down what it was granted and what it settled: the sums
have to be the same. The rival does what it can: two checks, one after the other.

    python -m benchmarks._api_limits URL NAME SECONDS SEED RIVAL    one of the processes
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from typing import Any

import redis

from benchmarks._windows import Taken, fullest_window, share_used
from slotwise import Rate, RedisConfig, Tier, Tiers
from slotwise.redis import _scripts

PROCESSES, TASKS = 4, 50
# A minute's worth in every second.
REQUESTS, TOKENS = Rate(600, per=1, burst=20), Rate(100_000, per=1, burst=20_000)
TENANTS = [f"tenant-{n}" for n in range(8)]


def a_call(dice: random.Random) -> tuple[int, int]:
    """What a call expects to use, and what it has really used."""
    expected = dice.randint(1, 2_000)
    return expected, min(max(int(expected * dice.uniform(0.5, 1.3)), 0), 2_600)


# ------------------------------------------------------------------ on the server

_LOG = "what was taken"
# Lines of the scripts, and what stands there instead.
_RECORDING = {
    "function R.buckets.charge(node, units)\n": f"""function R.buckets.charge(node, units, by_grant)
  local record = string.format('%d %d %d %s', node.tier, R.now_us, units, by_grant or 'no')
  redis.call('RPUSH', '{_LOG}', record)
""",
    "R.buckets.charge(node, its_need)": "R.buckets.charge(node, its_need, 'yes')",
    "pcall(R.quick.request)": "true, nil",  # the rules do the same, and are recorded
}


def record_on_the_server() -> None:
    """Have the scripts of this process write down what is taken of rates."""
    for script in map(_scripts.load, _scripts.OURS):
        source = script.source.decode()
        for line, recording in _RECORDING.items():
            assert line in source or "quick" in line
            source = source.replace(line, recording)
        changed = _scripts.Script(script.name, source)
        script.source, script.sha = changed.source, changed.sha  # the client has these objects


def recorded(server: redis.Redis, tier: int) -> list[Taken]:
    entries = (entry.split() for entry in server.lrange(_LOG, 0, -1))
    return [
        Taken(int(at) / 1e6, int(units), by_grant == b"yes")
        for number, at, units, by_grant in entries
        if int(number) == tier
    ]


# --------------------------------------------------------------------- a process


async def ours(url: str, name: str, seconds: float, dice: random.Random) -> dict[str, Any]:
    api = Tiers(
        Tier("tenant", 5, keyed=True),
        Tier("requests", rate=REQUESTS),
        Tier("tokens", rate=TOKENS),
        Tier("all", 20),
        name=name,
        url=RedisConfig(url),
    )
    end = time.time() + seconds
    grants: list[tuple[float, int]] = []
    settled = waited = 0

    async def work() -> None:
        nonlocal settled, waited
        while time.time() < end:
            expected, used = a_call(dice)
            async with api.cm(tenant=dice.choice(TENANTS), tokens=expected) as acquired:
                # The fencing token is the server's time, in microseconds.
                grants.append(((acquired.fencing_token or 0) / 1e6, expected))
                waited += acquired.waited > 0
                await asyncio.sleep(dice.uniform(0, 0.02))
                if dice.random() < 0.7:
                    acquired.settle(tokens=used)
                    settled += used - expected

    await asyncio.gather(*[work() for _ in range(TASKS)])
    await api.close()
    return {"grants": grants, "settled": settled, "waited": waited}


async def rival(url: str, name: str, seconds: float, dice: random.Random) -> dict[str, Any]:
    """`limits`: a rate at a time, asked again until there is enough."""
    from limits import RateLimitItemPerSecond
    from limits.aio.storage import RedisStorage
    from limits.aio.strategies import SlidingWindowCounterRateLimiter

    limiter = SlidingWindowCounterRateLimiter(
        RedisStorage(f"async+{url}", implementation="redispy")
    )
    requests, tokens = (RateLimitItemPerSecond(rate.count) for rate in (REQUESTS, TOKENS))
    end = time.time() + seconds
    grants: list[tuple[float, int]] = []

    async def work() -> None:
        while time.time() < end:
            expected, _ = a_call(dice)
            while not await limiter.hit(requests, name, "requests"):
                await asyncio.sleep(0.01)
            while not await limiter.hit(tokens, name, "tokens", cost=expected):
                await asyncio.sleep(0.01)
            grants.append((time.time(), expected))
            await asyncio.sleep(dice.uniform(0, 0.02))

    await asyncio.gather(*[work() for _ in range(TASKS)])
    return {"grants": grants, "settled": 0, "waited": 0}


def main() -> None:
    url, name, seconds, seed, who = sys.argv[1:]
    work = rival if who == "rival" else ours
    record_on_the_server()
    done = asyncio.run(work(url, name, float(seconds), random.Random(int(seed))))
    json.dump(done, sys.stdout)


# ------------------------------------------------------------------ all of them


def run(port: int, seconds: float, who: str) -> dict[str, Any]:
    url = f"redis://127.0.0.1:{port}"
    with redis.Redis(port=port) as server:
        server.config_resetstat()
        command = [sys.executable, "-m", "benchmarks._api_limits", url, "model-api", str(seconds)]
        processes = [
            subprocess.Popen([*command, str(seed), who], stdout=subprocess.PIPE)
            for seed in range(PROCESSES)
        ]
        parts = [json.loads(process.communicate()[0]) for process in processes]
        stats = server.info("commandstats")
        taken = {"requests": recorded(server, 2), "tokens": recorded(server, 3)}
    commands = sum(
        each["calls"]
        for name, each in stats.items()
        if name.removeprefix("cmdstat_") in ("evalsha", "eval", "fcall")
    )
    grants = sorted((at, units) for part in parts for at, units in part["grants"])
    times = [[at for at, _ in part["grants"]] for part in parts]
    if who == "rival":
        taken = {"tokens": [Taken(at, units, by_grant=True) for at, units in grants]}
    return {
        # While all processes are at work, and the buckets are not full any more.
        "between": (max(map(min, times)) + 1.0, min(map(max, times))),
        "taken": taken,
        "requested": len(grants),
        "used": sum(units for _, units in grants) + sum(part["settled"] for part in parts),
        "waited": sum(part["waited"] for part in parts),
        "commands": commands,
    }


def api_limits(port: int, seconds: float) -> list[tuple[str, bool]]:
    """The bars of the api, and what a rival makes of it."""
    results = []
    done = run(port, seconds, "ours")
    between, taken = done["between"], done["taken"]
    shares = []
    for name, rate, known in (("requests", REQUESTS, "requested"), ("tokens", TOKENS, "used")):
        fullest = fullest_window(taken[name], rate.count / rate.per, rate.burst)
        shares.append(share_used(taken[name], rate.count / rate.per, between))
        title = f"the fullest of all windows of {name}: {fullest:.4f} of the burst (bar 1)"
        results.append((title, fullest <= 1.0))
        total = sum(each.units for each in taken[name])
        title = f"{name} that the server has given: {total:,}, and that were used: {done[known]:,}"
        results.append((title, total == done[known]))
    calls, waited = done["requested"], done["waited"]
    title = f"of the binding budget, {max(shares):.3f} was used (bar 0.97)"
    results.append((title, max(shares) >= 0.97))
    each = done["commands"] / calls
    bar = (2 * calls + waited) / calls
    title = (
        f"{each:.2f} commands a call (bar {bar:.2f}: 2, and one more for the {waited:,} of"
        f" {calls:,} calls that waited)"
    )
    results.append((title, each <= 1.02 * bar))  # heartbeats aside, which come by the clock
    length = between[1] - between[0]
    print(f"\n{PROCESSES} processes x {TASKS} tasks, requests, tokens and slots, {length:.0f} s")
    for title, _ in results:
        print(f"  {title}")
    other = run(port, min(seconds, 10.0), "rival")
    used = share_used(other["taken"]["tokens"], TOKENS.count / TOKENS.per, other["between"])
    fullest = fullest_window(other["taken"]["tokens"], TOKENS.count / TOKENS.per, TOKENS.burst)
    print(
        f"  limits, two checks of sliding windows: {other['commands'] / other['requested']:.1f}"
        f" commands a call, {used:.2f} of the tokens used, the fullest window {fullest:.1f} times"
        f" the burst"
    )
    sys.stdout.flush()
    return results


if __name__ == "__main__":
    main()
