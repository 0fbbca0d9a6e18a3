"""A client of a model's API: 20 calls at once, 600 requests and 100,000 tokens a minute.

    pip install 'slotwise[httpx]'
    python llm_client.py http://localhost:8000/complete first-prompt second-prompt

Each call reserves the tokens that it may use, and afterwards settles what it really used. With
SLOTWISE_URL=redis://… all processes of a fleet share the budget.
"""

import asyncio
import os
import sys

import httpx

from slotwise import Rate, Tier, Tiers

budget = Tiers(
    Tier("requests", rate=Rate(600, per=60, burst=20)),
    Tier("tokens", rate=Rate(100_000, per=60, burst=20_000)),
    Tier("calls", 20),
    name="model-api",
    url=os.environ.get("SLOTWISE_URL", "memory://"),
)
MAX_ANSWER = 200  # tokens


async def complete(client: httpx.AsyncClient, url: str, prompt: str) -> str:
    reserved = len(prompt.split()) + MAX_ANSWER
    async with budget.hold(tokens=reserved) as acquired:
        reply = await client.post(url, json={"prompt": prompt, "max_tokens": MAX_ANSWER})
        reply.raise_for_status()
        answer = reply.json()
        await acquired.settle(tokens=answer["usage"])
        return str(answer["text"])


async def main(url: str, prompts: list[str]) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        for text in await asyncio.gather(*[complete(client, url, each) for each in prompts]):
            print(text)
    left = (await budget.stats())["tokens"].level
    print(f"{left:.0f} tokens left", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
