"""A server on another machine, asked by its HTTP API instead of its socket (F39).

It takes the ops that the commands with --server use, and answers them with the
same rows, so that a command need not know whom it asks. The token comes from a
file, and crosses no network in the clear.
"""

from __future__ import annotations

import ipaddress
import ssl
import sys
from collections.abc import Callable, Generator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from cortextx.app.cli.client import ANSWER_SECONDS, Client, Row
from cortextx.app.cli.faults import USAGE, Fault, Refused
from cortextx.app.cli.http_api import Api, json_object
from cortextx.app.cli.invocation import Remote

MAX_TOKEN_CHARS = 512
PAGE = 1000

Rows = Generator[Row, None, Row]


def _restored(at: int) -> Refused:
    return Refused(
        "store_restored",
        f"the server's store ends before entry {at}: an older one was restored (F26)",
        "begin again, without --after",
    )


def connect(remote: Remote) -> RemoteClient:
    """A client of the server that the options name; raises Fault."""
    assert remote.url is not None
    parts = urlsplit(remote.url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise Fault("--server takes a URL as https://HOST:PORT", None, USAGE)
    if parts.username is not None or parts.password is not None:
        raise Fault("--server takes a URL without user or password", None, USAGE)
    if parts.scheme == "http" and not _is_loopback(host):
        raise Fault(
            "http:// would send the token in the clear", "name the server by https://", USAGE
        )
    context = _context(remote.ca_file) if parts.scheme == "https" else None
    prefix = parts.path.rstrip("/")
    if remote.token is None:
        remote.token = _token(remote.token_file)
    return RemoteClient(Api(host, port, prefix, context, remote.token))


class RemoteClient(Client):
    """Answers ops by requests."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._ops: Mapping[str, Callable[..., Rows]] = {
            "ping": self._ping,
            "search": self._search,
            "search.tail": self._tail,
            "agent.list": self._hosts,
            "agent.show": self._host_shown,
            "agent.audit": self._audit,
            "gaps": self._gaps,
            "probe.run": self._probe,
            "probe.history": self._history,
            "server.status": self._status,
        }

    def close(self) -> None:
        """Hang up."""
        self._api.close()

    def allow(self, seconds: float) -> None:
        """Wait so long for an answer."""
        self._api.patience = max(ANSWER_SECONDS, seconds)

    def stream(self, op: str, *, follow: bool = False, **args: Any) -> Rows:
        """As Client.stream; raises Fault for an op that is for the server's machine only."""
        asked = self._ops.get(op)
        if asked is None:
            raise Fault(f"{op} works on the server's own machine only")
        if follow:
            args["follow"] = True
        return asked(**{name: value for name, value in args.items() if value is not None})

    # Ops

    def _ping(self) -> Rows:
        yield from ()
        return self._api.get("/whoami")

    def _search(self, limit: int = 100, cursor: str | None = None, **args: Any) -> Rows:
        """A store's page may be shorter than asked for, with a cursor all the same."""
        order = args.pop("order", "newest_first")
        left = limit
        while True:
            page = self._api.get(
                "/search", **_filters(args), limit=min(left, PAGE), cursor=cursor, order=order
            )
            yield from page["entries"]
            left -= len(page["entries"])
            cursor = page["cursor"]
            if cursor is None or left <= 0:
                return {"cursor": cursor}

    def _tail(
        self,
        last: int | None = None,
        after: int | None = None,
        follow: bool = False,
        limit: int = PAGE,
        **args: Any,
    ) -> Rows:
        if after is None and not follow:
            return (yield from self._newest(10 if last is None else last, args))
        head = None if follow else int(self._api.get("/status")["newest_entry_id"])
        if head is not None and after is not None and after > head:
            raise _restored(after)
        if head is not None and after == head:
            return {"cursor": after}
        return (yield from self._events(head, limit, last=last, after=after, **_filters(args)))

    def _newest(self, last: int, args: dict[str, Any]) -> Rows:
        """The newest entries by their time, in the order in which they were stored."""
        head = int(self._api.get("/status")["newest_entry_id"])
        found: list[Row] = []
        cursor: str | None = None
        while len(found) < last:
            page = self._api.get("/search", **_filters(args), limit=min(last, PAGE), cursor=cursor)
            found += [row for row in page["entries"] if int(row["id"]) <= head]
            cursor = page["cursor"]
            if cursor is None:
                break
        yield from sorted(found[:last], key=lambda row: int(row["id"]))
        return {"cursor": head}

    def _events(self, head: int | None, limit: int, **params: Any) -> Rows:
        """The stream of entries; up to the entry `head`, or `limit` of them, if head is given."""
        at = int(params.get("after") or 0)
        count = 0
        for kind, id, data in self._api.events("/tail", **params, max_lag=0):
            if kind == "gap" and json_object(data).get("reason") == "store_restored":
                raise _restored(at)
            if kind == "entry":
                yield json_object(data)
                count += 1
            at = max(at, id or 0)
            if head is not None and (at >= head or count >= limit):
                self.close()
                return {"cursor": at}
        raise self._api.went_away()

    def _hosts(self) -> Rows:
        found = self._api.get("/hosts")["hosts"]
        yield from found
        return {"count": len(found)}

    def _host_shown(self, host: str) -> Rows:
        yield self._api.get(f"/hosts/{quote(host, safe='')}")
        return {}

    def _audit(self, host: str, **asked: Any) -> Rows:
        path, cursor, count = f"/hosts/{quote(host, safe='')}/audit", None, 0
        while True:
            found = self._api.get(path, **asked, cursor=cursor)
            gaps, cursor = found.pop("gaps"), found.pop("cursor", None)
            yield from gaps
            count += len(gaps)
            if cursor is None:
                return {**found, "gaps": count}

    def _gaps(self, host: str | None = None) -> Rows:
        cursor, count = None, 0
        while True:
            found = self._api.get("/gaps", host=host, cursor=cursor)
            yield from found["gaps"]
            count += len(found["gaps"])
            cursor = found.get("cursor")
            if cursor is None:
                return {"count": count}

    def _probe(self, host: str, **body: Any) -> Rows:
        path = f"/hosts/{quote(host, safe='')}/probes"
        row = self._api.post(path, body)
        yield row
        return {"host_id": row["host_id"], "outcome": row["outcome"], "code": row["code"]}

    def _history(self, **params: Any) -> Rows:
        found = self._api.get("/probes", **params)
        yield from found["probes"]
        return {"next": found["next"]}

    def _status(self) -> Rows:
        yield from ()
        return self._api.get("/status")


def _filters(args: Mapping[str, Any]) -> dict[str, Any]:
    """The filters as the API's parameters are called."""
    names = {"hosts": "host", "apps": "app", "sources": "source", "severity": "severity_min"}
    return {names.get(name, name): value for name, value in args.items()}


def _token(path: str | None) -> str:
    """The token in a file; raises Fault, which never repeats it."""
    if path is None:
        raise Fault(
            "--server needs --token-file", "`cortextx server token add NAME --role viewer`"
            " on the server prints a token", USAGE,
        )  # fmt: skip
    try:
        if path == "-":
            text = sys.stdin.read(MAX_TOKEN_CHARS + 2)
        else:
            with open(path, encoding="ascii") as file:
                text = file.read(MAX_TOKEN_CHARS + 2)
    except OSError as error:
        raise Fault(f"the token in {path} cannot be read: {error.strerror}", None, USAGE) from None
    except UnicodeDecodeError:
        text = ""
    token = text.strip()
    if not token or len(token) > MAX_TOKEN_CHARS or not token.isascii() or " " in token:
        raise Fault(f"there is no token in {path}", None, USAGE)
    if not token.isprintable():
        raise Fault(f"there is more than a token in {path}", None, USAGE)
    return token


def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        raise Fault(f"{ca_file} holds no certificate in PEM form", None, USAGE) from None
    except OSError as error:
        raise Fault(f"{ca_file} cannot be read: {error.strerror}", None, USAGE) from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
