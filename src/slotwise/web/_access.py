"""Access: decide whether a request may be answered, by its Host, its token and its origin."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import TYPE_CHECKING

from slotwise._admin.hosts import REFUSED, is_ours, split

if TYPE_CHECKING:
    from slotwise.web._app import Request

_COOKIE = "slotwise_token"

RefusedResponse = tuple[int, str, list[tuple[str, str]]]


class Access:
    """Which requests may be answered."""

    def __init__(self, token: str | None, hosts: Iterable[str] | None) -> None:
        if token is not None and not token:
            raise ValueError("token must not be empty")
        self._token = token
        self._hosts = None if hosts is None else {host.casefold() for host in hosts}
        # What the cookie contains: reading it doesn't reveal the token.
        secret = "" if token is None else token
        self._cookie = hmac.new(secret.encode(), b"slotwise.web", hashlib.sha256).hexdigest()

    def refusal(self, request: Request) -> RefusedResponse | None:
        """Return how a request is refused; None if it may be answered."""
        if not is_ours(request.headers.get("host", ""), self._hosts):
            return 403, REFUSED, []
        if self._token is not None and not self._is_known(request):
            how = "pass the token as 'Authorization: Bearer', or once as ?token="
            return 401, how, [("www-authenticate", "Bearer")]
        return None

    def _is_known(self, request: Request) -> bool:
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        if kind.casefold() == "bearer" and self._is_token(bearer.strip()):
            return True
        if request.path == "/" and self._is_token(request.query.get("token", "")):
            return True
        cookies = request.headers.get("cookie", "").split(";")
        pairs = [each.strip().partition("=") for each in cookies]
        return any(name == _COOKIE and _same(value, self._cookie) for name, _, value in pairs)

    def _is_token(self, given: str) -> bool:
        return self._token is not None and _same(given, self._token)

    def cookie(self, request: Request) -> str:
        """Return the cookie that the browser sends from now on; empty if there is no token."""
        if self._token is None:
            return ""
        secure = "; Secure" if request.is_secure else ""
        path = f"{request.root}/"
        return f"{_COOKIE}={self._cookie}; Path={path}; HttpOnly; SameSite=Strict{secure}"

    def is_same_origin(self, request: Request) -> bool:
        """Whether the request isn't from a page of another origin; programs send no origin."""
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = request.headers.get("origin")
        if origin is None:
            return True
        return split(origin).netloc.casefold() == str(request.headers.get("host", "")).casefold()


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
