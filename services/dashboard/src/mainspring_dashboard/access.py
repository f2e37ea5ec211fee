"""Who may look: a token unless the page is served on loopback, and there only under loopback's own names.

The check of the Host header stops other pages that the same browser shows from reading this one through a name that
they let point to 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import hmac
import re
from base64 import b64encode
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdb_schema.serving.metrics import host_name, is_loopback

COOKIE: Final = "mainspring_token"
_PAGE: Final = Path(__file__).parent / "static" / "index.html"


def _policy() -> str:
    """With the one script that the page itself has, which is there when no file arrives."""
    scripts = re.findall(r"<script>(.*?)</script>", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    known = " ".join(f"'sha256-{b64encode(sha256(one.encode()).digest()).decode()}'" for one in scripts)
    return f"script-src 'self' {known}; {_OTHERWISE}"


_OTHERWISE: Final = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", _policy().encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Sent with every answer: nothing from another host is loaded, no script but the page's own runs."""


class Access:
    """ASGI middleware that lets in whoever shows `token`, or with None everybody who uses a loopback name."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, with_headers)
        else:
            await self._app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if self._token is None:
            if is_loopback(host_name(headers.get("host", ""))):
                return None
            return PlainTextResponse(
                "This dashboard is served on loopback without a token: use http://127.0.0.1 or localhost.\n", 403
            )
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        shown = next((value for key, value in query if key == "token"), None)
        if shown is not None and self._matches(shown) and scope["method"] == "GET":
            # The token leaves the address at once: it is in no history, no link that is shared, no referrer.
            rest = urlencode([(key, value) for key, value in query if key != "token"])
            path = "/" + quote(scope["path"].lstrip("/"))  # one slash: "//host" would be another host
            answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(_cookie_name(scope), shown, httponly=True, samesite="strict", path="/")
            return answer
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if (kind.lower() == "bearer" and self._matches(bearer)) or self._matches(_cookie(headers, _cookie_name(scope))):
            return None
        return PlainTextResponse(
            "This dashboard needs its access token: open the address that its start printed, "
            "or send the header Authorization: Bearer TOKEN.\n",
            401,
            {"www-authenticate": "Bearer"},
        )

    def _matches(self, shown: str | None) -> bool:
        token = self._token
        return token is not None and shown is not None and hmac.compare_digest(shown.encode(), token.encode())


def _cookie_name(scope: Scope) -> str:
    """Browsers share cookies between the ports of a host, and two dashboards have two tokens."""
    server = scope.get("server")
    return f"{COOKIE}_{server[1]}" if server else COOKIE


def _cookie(headers: Headers, name: str) -> str | None:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return found.value if found is not None else None
