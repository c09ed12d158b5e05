"""Report errors in the form of OpenAI's API: {"error": {"message", "type", "param", "code"}}."""

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from ane.system.errors import UserError

LOGGER = logging.getLogger("ane.server")
TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


# parts of the path to a wrong value that name no field, but a place in the request or one of pydantic's types
NO_FIELDS = ("body", "query", "header", "constrained-str", "VoiceId")
NO_OBJECT = ("missing", "dict_type", "model_type", "model_attributes_type")  # pydantic's errors if a value is no object
WORDS = {"missing": " is missing", "extra_forbidden": " is unknown: leave it out"}  # for errors of pydantic
JSON_KINDS = {bool: "a truth value", list: "a list", str: "a string", int | float: "a number"}


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of an answer to a request that failed."""

    error: ErrorDetail


RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": what}
    for status, what in (
        (400, "the request is not valid"),
        (401, "the token is missing or wrong"),
        (403, "the request is not allowed, or this web page may not send it"),
        (404, "there is no such model, voice or page"),
        (408, "the body did not arrive in time"),
        (413, "the body is too large"),
        (429, "too many requests. The header Retry-After says when to try again"),
        (500, "the server failed"),
        (503, "the server is stopping"),
        (504, "the request took too long"),
    )
}


class RefusedError(UserError):
    """The server rejects a request. The error has the HTTP status, and the name of the wrong parameter."""

    def __init__(self, message: str, status: int = 400, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


class BusyError(RefusedError):
    """The server takes no more requests now. The server probably has room again after ``retry_after`` seconds."""

    def __init__(self, retry_after: float):
        super().__init__("too many requests: try again later", 429, code="server_busy")
        self.retry_after = max(1, round(retry_after))


class FaultError(RefusedError):
    """The server cannot do its part of a valid request. The cause of the error may name paths, so only the log has it.

    Args:
        fault: Sentence that says what the server cannot do.
        cause: The cause.
    """

    def __init__(self, fault: str, cause: UserError):
        super().__init__(f"{fault}: its log says why", 500)
        LOGGER.error("%s: %s", fault, cause)


class DeadlineError(RefusedError):
    """A job took longer than the limit for one request."""

    def __init__(self, seconds: float):
        super().__init__(f"the request took more than {seconds:g} s", 504, code="timeout")


class StoppingError(RefusedError):
    """The server is stopping."""

    def __init__(self) -> None:
        super().__init__("the server stops", 503, code="stopping")


class ClientGoneError(Exception):
    """The client of a job closed its connection."""


def no_such_voice(name: str) -> RefusedError:
    """Return the error for a voice that does not exist, or that somebody deleted. It names no path of the server."""
    return RefusedError(f"there is no voice {name!r}", 404, "voice", "voice_not_found")


def fault_of(error: BaseException) -> BaseException:
    """Return the fault of the server that caused an error about a line of the text. Return other errors unchanged."""
    return error.__cause__ if isinstance(error.__cause__, FaultError) else error


def outcome_of(error: BaseException) -> str:
    """Return the word that stands for an error in the log and in the metrics."""
    error = fault_of(error)
    for kind, outcome in (
        (StoppingError, "stopped"),
        (FaultError, "error"),
        (UserError, "refused"),
        (ClientGoneError, "client gone"),
    ):
        if isinstance(error, kind):
            return outcome
    return "error"


def error_content(error: BaseException) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the body for an error. Log a fault of the server, and hide it from the client."""
    error = fault_of(error)
    param = getattr(error, "parameter", "") or None
    code, message = None, str(error)
    if isinstance(error, RefusedError):
        status, param, code = error.status, error.param, error.code
    elif isinstance(error, UserError):
        status = 400
    elif isinstance(error, HTTPException):
        status, message = error.status_code, str(error.detail)
    elif isinstance(error, RequestValidationError | ValidationError):
        status = 400
        param, message = wrong_field(error.errors())
    else:
        LOGGER.error("a request failed", exc_info=error)
        status, message = 500, "the server failed on this request: its log says why"
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return status, {"error": {"message": message, "type": kind, "param": param, "code": code}}


def wrong_field(errors: Sequence[Any]) -> tuple[str | None, str]:
    """Return the name of the first wrong field of a request, or ``None`` for the whole body, and the message."""
    # if a field takes a word or an object, there is an error for the word and one for the object; the longer path tells
    # more
    fault = max((each for each in errors if each["loc"][:2] == errors[0]["loc"][:2]), key=lambda each: len(each["loc"]))
    param = ".".join(str(part) for part in fault["loc"] if part not in NO_FIELDS)
    said = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "json_invalid":
        return None, f"the body is not JSON: {fault.get('ctx', {}).get('error', 'it cannot be read')}"
    if param:
        if "UploadFile" in said:
            return param, f"{param} must be a file"
        return param, f"{param}{WORDS.get(fault['type'], f': {said}')}"
    if fault["type"] not in NO_OBJECT:
        return None, said
    if isinstance(fault["input"], bytes):
        return None, "send Content-Type: application/json"
    empty = "missing" if fault["type"] == "missing" else "null"
    got = next((name for kind, name in JSON_KINDS.items() if isinstance(fault["input"], kind)), empty)
    return None, f"the body must be a JSON object, but it is {got}"


def error_response(error: BaseException) -> Response:
    status, content = error_content(error)
    headers = {"Retry-After": str(error.retry_after)} if isinstance(error, BusyError) else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, HTTPException) and error.headers:
        headers |= error.headers
    return JSONResponse(content, status, headers)


def install_error_handlers(app: FastAPI) -> None:
    async def handle(request: Request, error: Exception) -> Response:
        if isinstance(error, RequestValidationError):
            [fault, *_] = error.errors()
            if fault["loc"] == ("body",) and fault["type"] == "missing" and await request.body():
                error = RequestValidationError([{**fault, "type": "model_type"}])  # FastAPI says so about null
        return error_response(error)

    for kind in (UserError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, handle)
