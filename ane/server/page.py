"""Serve two web pages: one speaks a text (/), and one explains the API, with forms to try it (/docs).

The pages run only their own script, and load nothing from another host.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from html import escape
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

INLINE = re.compile(r"<(script|style)[^>]*>(.*?)</\1>", re.DOTALL)
ICON = re.compile(r'<link rel="icon"[^>]*>')
CODE = re.compile(r"`+([^`]+)`+")


def page_routes() -> APIRouter:
    router = APIRouter()
    pages: dict[str, HTMLResponse] = {}

    def answer(name: str, make: Callable[[], str]) -> HTMLResponse:
        if name not in pages:
            pages[name] = HTMLResponse(
                page := make(),
                headers={
                    "Content-Security-Policy": content_policy(page),
                    "Cache-Control": "no-cache",
                    "Referrer-Policy": "no-referrer",
                    "X-Content-Type-Options": "nosniff",
                },
            )
        return pages[name]

    @router.get("/", include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return answer("/", lambda: read_page("page.html"))

    @router.get("/docs", include_in_schema=False)
    async def show_docs(request: Request) -> HTMLResponse:
        return answer("/docs", lambda: docs_page(request.app.openapi()))

    return router


def read_page(name: str) -> str:
    return files("ane.server").joinpath(name).read_text(encoding="utf-8")


def content_policy(page: str) -> str:
    """Return a Content-Security-Policy that allows a page its inline script and style, its server and its sound."""
    allowed = {
        kind: f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for kind, text in INLINE.findall(page)
    }
    return (
        f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; connect-src 'self'; "
        "img-src data:; media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


def docs_page(schema: dict[str, Any]) -> str:
    """Make the page that explains the API, with a section for each operation of an OpenAPI schema."""
    page, [icon] = read_page("page.html"), ICON.findall(read_page("page.html"))
    operations = [
        operation(method, path, content, schema)
        for path, methods in schema["paths"].items()
        for method, content in methods.items()
    ]
    filled = read_page("docs.html")
    for mark, text in (
        ("<!-- icon -->", icon),
        ("/* page */", dict(INLINE.findall(page))["style"]),
        ("<!-- description -->", escape(schema["info"]["description"])),
        ("<!-- operations -->", "\n".join(operations)),
    ):
        filled = filled.replace(mark, text)
    return filled


def operation(method: str, path: str, content: dict[str, Any], schema: dict[str, Any]) -> str:
    """Make the section of the web page for an API operation: its description, its parameters, and a form to try it."""
    kind, body = next(iter(content.get("requestBody", {}).get("content", {}).items()), ("", {"schema": {}}))
    named = resolved(body["schema"], schema)
    fields, required = named.get("properties", {}), named.get("required", [])
    rows = [
        f"<tr><td><code>{escape(name)}</code><td>{escape(type_text(field))}"
        f"{'' if name in required else ', optional'}<td>{prose(field.get('description', ''))}</tr>"
        for name, field in fields.items()
    ]
    table = f"<table><tr><th>parameter<th>type<th>meaning</tr>{''.join(rows)}</table>" if rows else ""
    id_ = re.sub(r"\W+", "-", f"{method}{path}").strip("-")
    inputs = [input_field(f"{id_}-{one['name']}", one["name"], "path") for one in content.get("parameters", ())]
    if kind == "application/json":
        example = json.dumps({name: field["examples"][0] for name, field in fields.items() if "examples" in field})
        inputs.append(
            f'<div><label for="{id_}-body">Body</label><textarea id="{id_}-body" rows="4">{escape(example)}'
            "</textarea></div>"
        )
    elif kind:
        inputs += [
            input_field(
                f"{id_}-{name}",
                name,
                "form",
                "file" if "contentMediaType" in field or field.get("format") == "binary" else "text",
            )
            for name, field in fields.items()
            if name in required
        ]
    return (
        f'<section class="card"><h2 id="{id_}"><code>{method.upper()} {escape(path)}</code></h2>'
        f"<p>{prose(content.get('description') or content.get('summary', ''))}</p>{table}"
        f'<details><summary>Try it</summary><form class="try" data-method="{method.upper()}" '
        f'data-path="{escape(path)}" data-kind="{kind}">{"".join(inputs)}<button class="main">Send</button>'
        '<div class="answer" role="status"></div></form></details></section>'
    )


def input_field(id_: str, name: str, place: str, kind: str = "text") -> str:
    return (
        f'<div><label for="{id_}">{escape(name)}</label><input id="{id_}" name="{escape(name)}" data-in="{place}" '
        f'type="{kind}" required></div>'
    )


def resolved(body: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a body. If it refers to a component of ``schema``, return the component."""
    return schema["components"]["schemas"][body["$ref"].rpartition("/")[2]] if "$ref" in body else body


def prose(text: str) -> str:
    """Turn a description into HTML. Text in backticks becomes a code element."""
    return CODE.sub(r"<code>\1</code>", escape(text))


def type_text(field: dict[str, Any]) -> str:
    """Describe in words which type a field has."""
    if "enum" in field:
        return " | ".join(map(str, field["enum"]))
    if "anyOf" in field:
        return " | ".join(type_text(choice) for choice in field["anyOf"] if choice.get("type") != "null")
    return str(field.get("type") or field.get("$ref", "").rpartition("/")[2] or "any")
