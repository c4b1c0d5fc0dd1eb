"""What the server's admin socket answers: hosts, searches, tails, gaps, status (F39).

Each op is a coroutine as `cortextx.app.linesocket` wants it. Arguments are
structs, and an unknown one is refused. Times go in and out as RFC 3339 strings,
severities as names. Nothing here tells a token, except `agent.issue` its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Raw, Struct
from twisted.internet.task import deferLater

from cortextx.app.linesocket import Op, OpError, Rows, arguments
from cortextx.core.syslog import SEVERITY_NUMBER, Severity
from cortextx.fleet.contract import Uuid
from cortextx.fleet.server.audit import every_gap
from cortextx.fleet.server.invitations import chosen, rows_named, told_apart
from cortextx.fleet.server.protocol import PATH
from cortextx.fleet.server.rows import entry_row, gap_row, host_row, json_of, micros, moment
from cortextx.fleet.server.service import FleetServer
from cortextx.fleet.server.settings import is_loopback
from cortextx.fleet.server.status import status_row
from cortextx.interfaces.fleet import EntryFilter, HostRecord, StoredEntry

PAGE = 200
"""Entries that are fetched at a time: what an answer may hold in memory."""
MAX_LIMIT = 100_000
MAX_LAST = 10_000
FOLLOW_PAUSE = 0.05
"""Seconds between two looks of a following tail, so that every commit need not cost a query."""
MAX_EXPIRY = 365 * 86_400.0
MAX_NAME = 253
"""Characters of a host's name."""

_Name = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[^\x00-\x1f\x7f]+\Z")]
_NEW_NAME = re.compile(r"[^\W_][\w.:@-]*\Z")
_Expiry = Annotated[float, Meta(gt=0, le=MAX_EXPIRY)]
_Time = Annotated[datetime, Meta(tz=True)]


class _Args(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class IssueArgs(_Args, frozen=True):
    """`agent.issue`; `expires_in` in seconds."""

    name: str
    host_id: Uuid | None = None
    expires_in: _Expiry | None = None


class HostArgs(_Args, frozen=True):
    """Which host: an id or a name."""

    host: _Name


class RotateArgs(_Args, frozen=True):
    """`agent.rotate`: `now` cuts the session, `expire_in` seconds end the old token (F7)."""

    host: _Name
    now: bool | None = None
    expire_in: _Expiry | None = None


class GapArgs(_Args, frozen=True):
    """`gaps`, of one host or of all."""

    host: _Name | None = None


class FilterArgs(_Args, frozen=True):
    """Which entries; `severity` means this one and worse."""

    text: str = ""
    hosts: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    severity: Severity | None = None
    since: _Time | None = None
    until: _Time | None = None

    def filter(self) -> EntryFilter:
        """The same as the store takes it."""
        return EntryFilter(
            text=self.text,
            hosts=self.hosts,
            apps=self.apps,
            sources=self.sources,
            severity_max=None if self.severity is None else SEVERITY_NUMBER[self.severity],
            since=None if self.since is None else micros(self.since),
            until=None if self.until is None else micros(self.until),
        )


class SearchArgs(FilterArgs, frozen=True):
    """`search`: a page of at most `limit` entries; its end carries the next `cursor`."""

    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT)] = 100
    cursor: str | None = None
    order: Literal["newest_first", "oldest_first"] = "newest_first"


class TailArgs(FilterArgs, frozen=True):
    """`search.tail`: the `last` N entries, or those behind the id `after`; then what comes.

    Without `follow` at most `limit` entries behind `after` are sent, and the
    end's `cursor` is where to go on.
    """

    last: Annotated[int, Meta(ge=0, le=MAX_LAST)] | None = None
    after: Annotated[int, Meta(ge=0)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT)] = 1000
    follow: bool = False


class NoArgs(_Args, frozen=True):
    """For ops that take none."""


class AdminOps:
    """The ops over one fleet server. `ready` raises while the server is not up."""

    def __init__(self, reactor: Any, fleet: Callable[[], FleetServer], started_at: int) -> None:
        self._reactor = reactor
        self._fleet = fleet
        self._started_at = started_at

    def ops(self) -> dict[str, Op]:
        """By the names of the admin protocol."""
        return {
            "ping": self.ping,
            "agent.issue": self.issue,
            "agent.list": self.list_hosts,
            "agent.show": self.show,
            "agent.rotate": self.rotate,
            "agent.revoke": self.revoke,
            "agent.forget": self.forget,
            "search": self.search,
            "search.tail": self.tail,
            "gaps": self.gaps,
            "server.status": self.status,
        }

    async def ping(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """Says that the server is up: it answers only if it is."""
        arguments(args, NoArgs)
        fleet = self._fleet()
        return {
            "server": "cortex-server",
            "version": fleet.version,
            "pid": os.getpid(),
            "public_url": fleet.settings.server.public_url or fleet.own_url,
            "local_url": local_url(fleet),
        }

    async def issue(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """A one-time token and its invitation (F6). They are told this once."""
        asked = arguments(args, IssueArgs)
        if len(asked.name) > MAX_NAME or not _NEW_NAME.match(asked.name):
            raise OpError(
                "bad_request",
                "a host's name has letters, digits and . _ - : @ only, begins with a letter or"
                f" digit, and has {MAX_NAME} characters at most",
            )
        fleet = self._fleet()
        scheme, hint = invitation_advice(fleet)
        host_id = None if asked.host_id is None else asked.host_id.lower()
        issued = await fleet.issue(asked.name, host_id, asked.expires_in)
        return {
            "name": issued.record.name,
            "host_id": issued.record.host_id,
            "token": issued.token,
            "invitation": scheme + issued.invitation[issued.invitation.index("://") :],
            "hint": hint,
            "replaced": issued.replaced,
            "expires_at": moment(issued.record.token_expires_at),
        }

    async def list_hosts(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """All hosts, by name."""
        arguments(args, NoArgs)
        fleet = self._fleet()
        records = await fleet.registry.list_hosts()
        await rows(host_row(record, fleet) for record in records)
        return {"count": len(records)}

    async def show(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """One host, with all that is known of it."""
        asked = arguments(args, HostArgs)
        fleet = self._fleet()
        record = await find_host(fleet, asked.host)
        shown = host_row(record, fleet)
        shown["platform"] = json_of(record.platform)
        shown["capabilities"] = json_of(record.capabilities)
        store: Any = fleet.store
        host_id = record.host_id
        shown["groups"] = [] if host_id is None else await store.groups_of(host_id)
        await rows([shown])
        return {}

    async def rotate(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """A fresh token at the host's next hello (F7).

        The end tells what is to be expected: `connected` as the host was, `pending`
        if its next hello brings the token, `ends_at` where the one it has ends.
        """
        asked = arguments(args, RotateArgs)
        fleet = self._fleet()
        host_id = enrolled(await find_host(fleet, asked.host))
        connected = fleet.live(host_id) is not None
        record = await fleet.rotate(host_id, bool(asked.now), asked.expire_in)
        if record.state == "revoked":
            raise OpError(
                "revoked",
                f"{record.name} is revoked: it has no token",
                "let it enrol anew: `cortextx agent issue --host NAME --host-id UUID`",
            )
        pending, ends_at = record.rotation_pending, record.token_expires_at
        if not connected and ends_at is not None and ends_at <= fleet.wall():
            raise OpError(
                "locked_out",
                f"the token of {record.name} has ended: it cannot connect to take another",
                "let it enrol anew: `cortextx agent issue --host NAME --host-id UUID`",
            )
        return {
            "host_id": host_id,
            "name": record.name,
            "connected": connected,
            "pending": pending,
            "ends_at": moment(record.token_expires_at if pending else record.prev_expires_at),
        }

    async def revoke(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """No token of the host is good any more (F8). Of an invitation that nobody used
        nothing is left then: its row goes."""
        asked = arguments(args, HostArgs)
        fleet = self._fleet()
        record = await find_one(fleet, asked.host)
        if record.host_id is None:
            await fleet.registry.forget_row(record.key)
            return {"host_id": None, "name": record.name, "withdrawn": True}
        await fleet.revoke(record.host_id)
        return {"host_id": record.host_id, "name": record.name, "withdrawn": False}

    async def forget(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """Remove the host's row, or an invitation that nobody used."""
        asked = arguments(args, HostArgs)
        fleet = self._fleet()
        record = await find_one(fleet, asked.host)
        if record.host_id is None:
            await fleet.registry.forget_row(record.key)
        else:
            await fleet.forget(record.host_id)
        withdrawn = record.host_id is None
        return {"host_id": record.host_id, "name": record.name, "withdrawn": withdrawn}

    async def search(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """Entries in the order of their time, fetched and sent page by page."""
        asked = arguments(args, SearchArgs)
        store, which = self._fleet().store, asked.filter()
        newest_first, cursor, left = asked.order == "newest_first", asked.cursor, asked.limit
        while True:
            page = await store.search(which, min(left, PAGE), newest_first, cursor)
            await rows(map(entry_row, page.entries))
            left -= len(page.entries)
            cursor = page.cursor
            if cursor is None or left <= 0:
                return {"cursor": cursor}

    async def tail(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """Entries in the order in which they were stored (A64)."""
        asked = arguments(args, TailArgs)
        if asked.last is not None and asked.after is not None:
            raise OpError("bad_request", "`last` and `after` exclude one another")
        which = asked.filter()
        if asked.after is not None:
            cursor, left = asked.after, None if asked.follow else asked.limit
            if cursor > (head := await self._fleet().store.head()):
                raise OpError(
                    "store_restored",
                    f"the store ends at entry {head}, before {cursor}: an older one was restored"
                    " (F26)",
                    "begin again, without --after",
                )
        else:
            cursor = await self._last(which, 10 if asked.last is None else asked.last, rows)
            left = None if asked.follow else 0
        while left is None or left > 0:
            # Asked before the query, so that no commit falls between the two.
            commit = self._fleet().writer.next_commit()
            try:
                count = PAGE if left is None else min(PAGE, left)
                page = await self._fleet().following.page(which, cursor, count)
                await rows(map(Raw, page.rows))
                if left is not None:
                    left -= len(page.rows)
                # A cursor beyond the head (of a store that was restored) comes back to it.
                behind, cursor = page.cursor > cursor, page.cursor
                if behind:
                    continue
                if left is not None:
                    break
                await commit
            finally:
                commit.addErrback(lambda _: None)
                commit.cancel()
            await deferLater(self._reactor, FOLLOW_PAUSE)
        return {"cursor": cursor}

    async def _last(self, which: EntryFilter, count: int, rows: Rows) -> int:
        """Send the `count` newest entries (by their time) and answer the head they end at."""
        store = self._fleet().store
        head = await store.head()
        found: list[StoredEntry] = []
        cursor: str | None = None
        while len(found) < count:
            page = await store.search(which, min(PAGE, count - len(found)), True, cursor)
            found += [entry for entry in page.entries if entry.id <= head]
            cursor = page.cursor
            if cursor is None:
                break
        found.sort(key=lambda entry: entry.id)
        await rows(map(entry_row, found))
        return head

    async def gaps(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """Seqs that the server never got (F13)."""
        asked = arguments(args, GapArgs)
        fleet = self._fleet()
        host_id = None if asked.host is None else enrolled(await find_host(fleet, asked.host))
        names = {record.host_id: record.name for record in await fleet.registry.list_hosts()}
        count = 0
        async for gaps in every_gap(fleet.store, host_id):
            await rows(gap_row(gap, names.get(gap.host_id)) for gap in gaps)
            count += len(gaps)
        return {"count": count}

    async def status(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """How the server is."""
        arguments(args, NoArgs)
        return await status_row(self._fleet(), self._started_at)


def local_url(fleet: FleetServer) -> str | None:
    """Where an agent on this very machine connects without TLS; None if it cannot be told."""
    for endpoint, address in zip(fleet.settings.server.listen, fleet.addresses, strict=False):
        if endpoint.startswith("tcp") and not address.startswith("/"):
            host, _, port = address.rpartition(":")
            host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104
            if is_loopback(host):
                return f"ws://{host}:{port}{PATH}"
    return None


def invitation_advice(fleet: FleetServer) -> tuple[str, str | None]:
    """The scheme that invitations name, and what to tell about them; raises ConfigError.

    Agents refuse ws:// to another machine (F20), so where TLS is somebody else's
    work it is wss:// that they are told, except at a loopback address.
    """
    url, table = fleet.public_url(), fleet.settings.server
    parts = urlsplit(url)
    if table.public_url is not None:
        return parts.scheme, None
    set_it = "set public_url in [server] of cortex-server.toml to the URL at which hosts reach it"
    if is_loopback(parts.hostname or ""):
        return parts.scheme, f"only this machine can use the invitation; for others {set_it}"
    if table.tls_terminated_externally:
        return "wss", f"the invitation names this machine and the port without TLS; {set_it}"
    return parts.scheme, None


async def find_host(fleet: FleetServer, ref: str) -> HostRecord:
    """The host that `ref` names, before invitations of its name; raises OpError for none,
    and for several (F39)."""
    found = await rows_named(fleet.registry, ref)
    record = chosen(found)
    return _the_one(ref, found) if record is None else record


async def find_one(fleet: FleetServer, ref: str) -> HostRecord:
    """The same where it is to be destroyed: nothing goes before anything else."""
    return _the_one(ref, await rows_named(fleet.registry, ref))


def _the_one(ref: str, found: Sequence[HostRecord]) -> HostRecord:
    if not found:
        raise OpError("not_found", f"no host {ref!r}", "`cortextx agent list` shows the hosts")
    if len(found) > 1:
        hint = "name one by its id: " + told_apart(found)
        raise OpError("ambiguous", f"{len(found)} hosts are named {ref!r}", hint)
    return found[0]


def enrolled(record: HostRecord) -> str:
    """The host's id; raises OpError if its first hello has yet to give it one."""
    if record.host_id is None:
        raise OpError(
            "not_enrolled",
            f"{record.name!r} has not enrolled yet",
            "`cortextx agent forget NAME` withdraws its invitation",
        )
    return record.host_id
