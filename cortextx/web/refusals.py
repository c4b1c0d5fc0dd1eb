"""Resources of the site that say no as the HTTP API does: application/problem+json.

Twisted's own answers for a path or a method that a resource does not know are
pages of HTML; programs ask here, so all of it is a problem with a `code`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.web.error import UnsupportedMethod
from twisted.web.resource import IResource, Resource
from zope.interface import implementer

from cortextx.core import jsontext
from cortextx.web.problems import CONTENT_TYPE, Problem, not_allowed, not_found


def refused(request: Any, problem: Problem) -> bytes:
    """Make the answer a problem; the body, which is still to be sent."""
    body = jsontext.encode(problem.body())
    request.setResponseCode(problem.status)
    for name, value in problem.headers.items():
        request.setHeader(name.encode(), value.encode())
    request.setHeader(b"Content-Type", CONTENT_TYPE)
    request.setHeader(b"Cache-Control", b"no-store")
    request.setHeader(b"Content-Length", b"%d" % len(body))
    return b"" if request.method == b"HEAD" else body


@implementer(IResource)
class Refusing(Resource):
    """A resource that knows the methods it has a `render_…` for, and nothing below itself
    but its children."""

    def getChild(self, path: bytes, request: Any) -> IResource:
        return NotThere()

    def render(self, request: Any) -> Any:
        try:
            return super().render(request)
        except UnsupportedMethod as error:
            allowed: Sequence[bytes] = error.allowedMethods
            known = [str(method, "ascii") for method in allowed]
            # A resource that only has others below it is none itself.
            there = any(method != "HEAD" for method in known)
            return refused(request, not_allowed(known) if there else not_found("resource"))


@implementer(IResource)
class NotThere(Refusing):
    """404 for whatever is not mounted."""

    def render(self, request: Any) -> Any:
        return refused(request, not_found("resource"))
