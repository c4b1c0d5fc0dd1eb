"""What the HTTP API answers when it says no: application/problem+json (RFC 9457) (PURE).

One map leads from the package's errors to status codes; of any other error only
that there was one is told. `field` and `expected` name what is at fault in the
request, and never repeat its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus

from msgspec import Struct

from cortextx.errors import (
    BadQuery,
    ConfigError,
    CortexError,
    JsonError,
    NameTaken,
    StoreClosed,
    StoreError,
    StoreFull,
    UnknownEntry,
    UnknownHost,
    UnknownName,
)

CONTENT_TYPE = b"application/problem+json"
RETRY_SECONDS = "2"
"""What Retry-After says where trying again soon makes sense."""


class ProblemBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of an answer of 400 and above; `code` is for programs, `detail` for people."""

    title: str
    status: int
    code: str
    detail: str | None = None
    field: str | None = None
    expected: str | None = None
    hint: str | None = None


class Problem(CortexError):
    """A request is refused with an HTTP status."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str | None = None,
        *,
        field: str | None = None,
        expected: str | None = None,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail or code)
        self.status = status
        self.code = code
        self.detail = detail
        self.field = field
        self.expected = expected
        self.hint = hint
        self.headers = dict(headers or {})

    def body(self) -> ProblemBody:
        """What the client is told."""
        return ProblemBody(
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            code=self.code,
            detail=self.detail,
            field=self.field,
            expected=self.expected,
            hint=self.hint,
        )


INTERNAL = Problem(500, "internal", "the request failed inside the server; its log says why")


def problem_of(error: BaseException) -> Problem | None:
    """The problem that an error is for a client; None for a fault of our own."""
    match error:
        case Problem():
            return error
        case JsonError() | BadQuery():
            return wrong(error.field.removeprefix("$.") or "$", error.expected)
        case ConfigError():
            return Problem(409, "not_configured", str(error), field=error.field)
        case UnknownHost():
            return not_found("host")
        case UnknownEntry():
            return not_found("entry")
        case UnknownName():
            return not_found("name")
        case NameTaken():
            return Problem(409, "name_taken", "something else has that name already")
        case StoreFull():
            return Problem(507, "store_full", "the server's disk or the store's quota is full")
        case StoreClosed():
            return unavailable("the server is starting or stopping; try again")
        case StoreError():
            return unavailable(str(error))
        case _:
            return None


def wrong(field: str, expected: str) -> Problem:
    """A part of the request is not as declared."""
    detail = f"{field}: expected {expected}"
    return Problem(400, "bad_request", detail, field=field, expected=expected)


def not_found(what: str) -> Problem:
    """There is no such thing."""
    return Problem(404, "not_found", f"there is no such {what}")


def not_allowed(methods: Iterable[str]) -> Problem:
    """There is such a thing, but not with this method."""
    return Problem(
        405,
        "method_not_allowed",
        "the resource does not know this method",
        headers={"Allow": ", ".join(sorted(methods))},
    )


def unavailable(detail: str) -> Problem:
    """Not now, perhaps soon."""
    return Problem(503, "unavailable", detail, headers={"Retry-After": RETRY_SECONDS})
