"""The server's pages: / is one HTML file, in which nothing runs but its own script; /docs is the OpenAPI schema for
people, without scripts and without anything from another host."""

import base64
import hashlib
import re
from html import escape
from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

INLINE = re.compile(r"<(script|style)[^>]*>(.*?)</\1>", re.DOTALL)
DOCS = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem;
color-scheme:light dark}}code{{font-size:.95em}}td,th{{text-align:left;vertical-align:top;padding:.1rem .8rem .1rem 0}}
</style><h1>{title}</h1><p>{description} The schema for programs is <a href="openapi.json">openapi.json</a>.</p>
{operations}</html>"""


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


def docs_page(schema: dict[str, Any]) -> str:
    """A section for each operation of an OpenAPI schema, with its parameters."""
    operations = [operation(method, path, content, schema) for path, methods in schema["paths"].items()
                  for method, content in methods.items()]
    return DOCS.format(title=escape(schema["info"]["title"]), description=escape(schema["info"]["description"]),
                       operations="\n".join(operations))


def operation(method: str, path: str, content: dict[str, Any], schema: dict[str, Any]) -> str:
    bodies = content.get("requestBody", {}).get("content", {})
    rows = [row for kind, body in bodies.items() for row in parameters(kind, body["schema"], schema)]
    table = f"<table><tr><th>parameter<th>type<th>what it is</tr>{''.join(rows)}</table>" if rows else ""
    return (f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
            f"<p>{escape(content.get('description') or content.get('summary', ''))}</p>{table}")


def parameters(kind: str, body: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """Rows for the fields of a body, whose schema is in ``components``."""
    named = schema["components"]["schemas"][body["$ref"].rpartition("/")[2]] if "$ref" in body else body
    required = named.get("required", [])
    return [f"<tr><td><code>{escape(name)}</code><td>{escape(type_text(field))}"
            f"{'' if name in required else ', optional'}<td>{escape(field.get('description', ''))}</tr>"
            for name, field in named.get("properties", {}).items()]


def type_text(field: dict[str, Any]) -> str:
    """A field's type in words."""
    if "enum" in field:
        return " | ".join(map(str, field["enum"]))
    if "anyOf" in field:
        return " | ".join(type_text(choice) for choice in field["anyOf"] if choice.get("type") != "null")
    return str(field.get("type") or field.get("$ref", "").rpartition("/")[2] or "any")
