"""Each documented call of slotwise.integrations, as the type checker sees it; nothing here runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slotwise import Limit, MemorySemaphore, Tier, Tiers
from slotwise.integrations import asgi, wsgi
from slotwise.integrations.aiohttp import limit_middleware
from slotwise.integrations.celery import limited as celery_limited
from slotwise.integrations.django import limited_view as django_view
from slotwise.integrations.dramatiq import RequeueMiddleware
from slotwise.integrations.dramatiq import limited as dramatiq_limited
from slotwise.integrations.fastapi import limited_by
from slotwise.integrations.flask import limited_view as flask_view
from slotwise.integrations.httpx import LimitedTransport
from slotwise.integrations.pytest_plugin import SlotLeakWarning, fake_clock
from slotwise.integrations.rq import limited as rq_limited
from slotwise.integrations.taskiq import RequeueMiddleware as TaskiqRequeueMiddleware
from slotwise.integrations.taskiq import limited as taskiq_limited

limit: Limit = MemorySemaphore(5)
tiers = Tiers(Tier("tenant", 5, keyed=True))


async def asgi_app(scope: Any, receive: Any, send: Any) -> None: ...


def wsgi_app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    return [b""]


middleware = asgi.LimitMiddleware(
    asgi_app,
    limit,
    wait=0.5,
    exempt=("/healthz",),
    observe=True,
    on_disconnect="cancel",
    drain=False,
)
middleware.drain()
refused: int = middleware.refused + middleware.would_refuse
asgi.LimitMiddleware(asgi_app, tiers, key=lambda scope: {"tenant": scope["path"]}, wait=None)
asgi.LimitMiddleware(asgi_app, lambda scope: None)
wsgi.LimitMiddleware(wsgi_app, limit, wait=0.5, exempt=(), observe=True)

guard = limited_by(limit, wait=0.5)
responses: dict[int | str, dict[str, Any]] = guard.responses
limited_by(tiers, key=lambda request: {"tenant": request.path_params["tenant"]})


@flask_view(limit, wait=0.5)
def flask_report(tenant: str) -> str:
    return tenant


@django_view(tiers, key=lambda request: {"tenant": str(request.user.pk)})
async def django_report(request: Any) -> Any: ...


transport: Any = None
LimitedTransport(transport, limit, cost=3, max_pause=60)
LimitedTransport(
    transport,
    tiers,
    key=lambda request: {"tenant": request.url.host},
    cost=lambda request: {"tokens": 12},
)
limit_middleware(limit, cost=lambda request: 2)


@celery_limited("crm:{tenant}", 5, url="redis://cache", on_full="requeue", cost=2, priority=1)
def sync_tenant(tenant: str) -> int:
    return len(tenant)


@rq_limited("crm", 5, timeout=3.0, on_full="requeue")
def rq_job(tenant: str) -> int:
    return len(tenant)


@dramatiq_limited("crm", 5)
def dramatiq_actor(tenant: str) -> int:
    return len(tenant)


@taskiq_limited("crm", 5)
async def taskiq_task(tenant: str) -> int:
    return len(tenant)


count: int = sync_tenant("acme") + rq_job("acme") + dramatiq_actor("acme")
RequeueMiddleware()
TaskiqRequeueMiddleware(schedule_source=None)

# A fixture that tests ask for by its name, and a category for filters of warnings.
fixture: Any = fake_clock
category: type[Warning] = SlotLeakWarning
