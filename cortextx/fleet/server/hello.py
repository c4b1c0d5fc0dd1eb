"""What is checked of an agent.hello before anybody is asked about its token (PURE; §4.1, F28)."""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from cortextx.core.jsontext import Decoder
from cortextx.errors import JsonError, RemoteProtocolError
from cortextx.fleet import jsonrpc
from cortextx.fleet.contract import HELLO, PROTOCOL_VERSION, Code, HelloParams
from cortextx.fleet.server.pushes import without_nul

_VERSION = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)(?:-([^+]*))?")
VersionKey = tuple[Any, ...]


class HelloFault(RemoteProtocolError):
    """A hello that is refused whatever its token: the code, data and id of the answer."""

    def __init__(
        self, code: Code, data: dict[str, Any] | None = None, id: jsonrpc.Id | None = None
    ) -> None:
        super().__init__(code.title)
        self.code = code
        self.data = data
        self.id = id


class _Version(Struct):
    protocol_version: int | UnsetType = UNSET


_version = Decoder(_Version)


def read_hello(
    payload: bytes, min_agent_version: str | None = None
) -> tuple[jsonrpc.Id, HelloParams]:
    """Read a connection's first message, which is UTF-8; raises HelloFault (§3, F4)."""
    try:
        message = jsonrpc.parse(payload, utf8_checked=True)
    except jsonrpc.EnvelopeError as error:
        data = {"field": error.field, "expected": error.expected}
        raise HelloFault(error.code, data, error.id) from None
    match message:
        case jsonrpc.Request(id, method, params) if method == HELLO:
            try:
                return id, decode_hello(params, min_agent_version)
            except HelloFault as fault:
                fault.id = id
                raise
        case jsonrpc.Notification(method, _) if method == HELLO:
            data = {"field": "$.id", "expected": "an id, as a hello is answered"}
            raise HelloFault(Code.INVALID_REQUEST, data)
        case jsonrpc.Request(id, _, _):
            raise HelloFault(Code.AUTH_REQUIRED, None, id)
        case _:
            raise HelloFault(Code.AUTH_REQUIRED)


def decode_hello(params: Raw, min_agent_version: str | None = None) -> HelloParams:
    """Read a hello; raises HelloFault (-32003 or -32602).

    A protocol version that is an integer but not ours comes before any fault of
    shape (F28). `host_id` comes out in lower case, NUL in text as U+FFFD (F16).
    """
    try:
        version = _version.decode(params).protocol_version
    except JsonError:
        version = UNSET
    if version is not UNSET and version != PROTOCOL_VERSION:
        raise HelloFault(
            Code.AGENT_VERSION_UNSUPPORTED,
            {"required_protocol_version": PROTOCOL_VERSION, "current": PROTOCOL_VERSION},
        )
    try:
        hello = jsonrpc.decode_params(without_nul(params), HelloParams)
    except JsonError as error:
        fault = {"field": error.field, "expected": error.expected}
        raise HelloFault(Code.INVALID_PARAMS, fault) from None
    if min_agent_version is not None and version_key(hello.agent_version) < version_key(
        min_agent_version
    ):
        raise HelloFault(Code.AGENT_VERSION_UNSUPPORTED, {"min_agent_version": min_agent_version})
    return replace(hello, host_id=hello.host_id.lower())


def version_key(version: str) -> VersionKey:
    """What orders versions as semver 2.0.0 §11 does (F28): build metadata is ignored,
    a pre-release is below its release. `version` is of the form of `agent_version`.

    Numbers are compared as text, so that their length costs nothing.
    """
    found = _VERSION.match(version)
    if found is None:
        raise ValueError("not a version")
    major, minor, patch, pre = found.groups()
    numbers = tuple(_number(text) for text in (major, minor, patch))
    if pre is None:
        return (*numbers, (1,))
    return (*numbers, (0, *(_identifier(text) for text in pre.split("."))))


def _number(text: str) -> tuple[int, str]:
    digits = text.lstrip("0")
    return len(digits), digits


def _identifier(text: str) -> tuple[int, int, str]:
    """Numbers are below words, and in their own order."""
    if text.isascii() and text.isdigit():
        return (0, *_number(text))
    return (1, 0, text)
