"""Limits where they are used: functions, web servers, HTTP clients, task queues, tests.

Each module here is the adapter of one framework, and the only one that imports it:
``slotwise.integrations.asgi``, ``.fastapi``, ``.httpx``, ``.celery`` and so on. The decorator for
any function is `slotwise.limited`. Waiting and granting is up to the limits.
"""

__all__: list[str] = []
