"""A FastAPI service with tenants: 2 requests at once for each, 10 for all of them together.

    pip install 'slotwise[fastapi]' uvicorn
    uvicorn fastapi_tenants:app --workers 4

All workers share the limits, on this machine and without a server: SLOTWISE_URL=redis://… makes
them limits of a fleet. A tenant that exceeds its own limit gets 429; if all 10 slots are taken,
everybody gets 503.
"""

import asyncio
import os

from fastapi import Depends, FastAPI, Request

from slotwise import MemorySemaphore, Tier, Tiers
from slotwise.integrations.asgi import LimitMiddleware
from slotwise.integrations.fastapi import limited_by

URL = os.environ.get("SLOTWISE_URL", "process://")

tenants = Tiers(
    Tier("tenant", 2, keyed=True),
    Tier("all", 10),
    name="fastapi-tenants",
    url=URL,
    max_acquire_time=5,
)


def tenant_of(request: Request) -> dict[str, str]:
    return {"tenant": request.headers.get("x-tenant", "nobody")}


guard = limited_by(tenants, key=tenant_of, wait=0.1)
app = FastAPI()


@app.get("/report", dependencies=[Depends(guard)], responses=guard.responses)
async def report(seconds: float = 0.1) -> dict[str, str]:
    await asyncio.sleep(seconds)  # stands in for a slow query
    return {"report": "done"}


@app.get("/healthz")
async def healthz() -> dict[str, int]:
    stats = await tenants.stats()
    return {"active": stats["all"].active}


# Around everything: what this process can take, whoever asks. /healthz is exempt.
app.add_middleware(LimitMiddleware, limit=MemorySemaphore(100), wait=0.1)
