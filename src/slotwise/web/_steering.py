"""Make the changes that are requested on the page; the log says who requested them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from slotwise._admin import BadRequest, verbs
from slotwise._admin.backends import Backend, NotFound
from slotwise.errors import SlotwiseError

logger = logging.getLogger("slotwise.web")

_ACTIONS = ("kick", "resize", "close", "open", "freeze", "thaw")
_FIELDS = {"value": int} | dict.fromkeys(("name", "kind", "tier", "key", "reason", "id"), str)


def steer(backend: Backend, wanted: object, who: str) -> tuple[int, dict[str, Any]]:
    """Do it; return the status and the body of the response."""
    try:
        done, *_ = verbs.plan(backend, _checked(wanted)).make().splitlines()
    except NotFound as error:
        return 404, {"error": str(error)}
    except (ValueError, TypeError) as error:
        return 400, {"error": str(error).replace("--", "")}  # which is how commands name fields
    except SlotwiseError as error:
        return 503, {"error": str(error)}
    logger.warning("%s, asked for by %s on the page", done, who, extra={"steered_by": who})
    return 200, {"done": done}


def _checked(wanted: object) -> verbs.Wanted:
    if not isinstance(wanted, Mapping) or wanted.get("action") not in _ACTIONS:
        raise BadRequest(f"send an object; its action is one of {', '.join(_ACTIONS)}")
    given = {field: wanted[field] for field in _FIELDS if wanted.get(field) is not None}
    for field, value in given.items():
        if not isinstance(value, _FIELDS[field]) or isinstance(value, bool):
            raise BadRequest(f"{field} must be of type {_FIELDS[field].__name__}")
    if given.get("kind") not in (None, "semaphore", "tiers"):
        raise BadRequest("kind must be semaphore or tiers")
    return verbs.Wanted(verb=wanted["action"], **given)
