"""Make the changes that are requested on the page; the log says who requested them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from slotwise._admin import steering
from slotwise._admin.backends import Backend, NotFound
from slotwise.errors import SlotwiseError

logger = logging.getLogger("slotwise.web")


def steer(backend: Backend, wanted: object, who: str) -> tuple[int, dict[str, Any]]:
    """Do it; return the status and the body of the response."""
    try:
        if not isinstance(wanted, Mapping):
            raise steering.BadRequest("send an object with an action")
        done = steering.steer(backend, wanted)
    except NotFound as error:
        return 404, {"error": str(error)}
    except (ValueError, TypeError) as error:
        return 400, {"error": str(error)}
    except SlotwiseError as error:
        return 503, {"error": str(error)}
    logger.warning("%s, asked for by %s on the page", done, who, extra={"steered_by": who})
    return 200, {"done": done}
