"""The page at /: one HTML file, in which nothing runs but its own script."""

import base64
import hashlib
import re
from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

INLINE = re.compile(r"<(script|style)[^>]*>(.*?)</\1>", re.DOTALL)


def page_routes() -> APIRouter:
    router = APIRouter()
    page = files("ane.server").joinpath("page.html").read_text(encoding="utf-8")
    headers = {"Content-Security-Policy": content_policy(page), "Cache-Control": "no-cache",
               "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}

    @router.get("/", include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    return router


def content_policy(page: str) -> str:
    """A Content-Security-Policy that allows a page its own inline script and style, and requests to its own server."""
    allowed = {kind: f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
               for kind, text in INLINE.findall(page)}
    return (f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'")
