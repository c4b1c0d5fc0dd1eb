"""The admin ops over a server in memory: what they answer and what they refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app import admin
from cortextx.app.admin import AdminOps, moment
from cortextx.app.linesocket import OpError
from cortextx.errors import BadQuery
from cortextx.fleet.contract import LogEntry
from cortextx.fleet.server import tokens
from cortextx.fleet.server.service import FleetServer, Live
from cortextx.fleet.server.settings import ServerSettings, ServerTable
from cortextx.interfaces.fleet import LogBatch
from cortextx.stores.memory import MemoryStore

WALL = 1_800_000_000_000_000
HOST_A = "aaaaaaaa-7e3c-4d2a-9c0e-9bbf5d3a1f01"
HOST_B = "bbbbbbbb-7e3c-4d2a-9c0e-9bbf5d3a1f02"


class Nobody:
    """A pusher that does not listen."""

    def stored(self, key: int, appended: Any) -> None:
        pass

    def not_stored(self, key: int, error: Exception) -> None:
        raise AssertionError(error)


class AdminCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.store = MemoryStore()
        count = iter(range(1, 10_000))
        self.fleet = FleetServer(
            self.clock,
            self.store,
            self.store,
            ServerSettings(),
            mint=tokens.Mint(lambda size: next(count).to_bytes(size, "big")),
            wall=lambda: WALL,
            version="0.1.0",
        )
        self.fleet.addresses.append("127.0.0.1:8600")
        self.fleet.own_url = "ws://127.0.0.1:8600/ws/agent"
        self.ops = AdminOps(self.clock, lambda: self.fleet, WALL).ops()
        self.rows: list[Any] = []

    def begin(self, op: str, **args: Any) -> Deferred[Any]:
        """Start an op; its rows go to `rows`, through JSON as a client gets them."""

        async def rows(some: Iterable[Any]) -> None:
            for row in some:
                line = msgspec.json.encode(row)
                self.assertNotIn(b"\n", line)
                self.rows.append(json.loads(line))

        self.rows = []
        return Deferred.fromCoroutine(self.ops[op](args, rows))

    def end(self, op: str, **args: Any) -> Any:
        return json.loads(msgspec.json.encode(self.successResultOf(self.begin(op, **args))))

    def refused(self, op: str, **args: Any) -> OpError:
        return self.failureResultOf(self.begin(op, **args), OpError).value

    def issue(self, name: str = "web1", host_id: str | None = HOST_A) -> Any:
        return self.end("agent.issue", name=name, host_id=host_id)

    def store_lines(self, *messages: str, host_id: str = HOST_A, metadata: bytes = b"") -> None:
        """Push entries as a session does."""
        [record] = self.successResultOf(self.store.find(host_id))
        first = record.accepted_seq + 1
        entries = [
            LogEntry(
                seq=first + n,
                ts=datetime(2026, 5, 16, 19, 42, n, tzinfo=UTC),
                severity="warning",
                message=message,
                source="file:/var/log/x",
                app_name="app",
                metadata=msgspec.Raw(metadata),
            )
            for n, message in enumerate(messages)
        ]
        batch = LogBatch(host_id, first, entries, WALL)
        self.fleet.writer.submit(Nobody(), 1, batch)


class Hosts(AdminCase):
    def test_issue(self) -> None:
        """Issuing tells the token once, with an invitation and its end (F6)."""
        made = self.issue(host_id=None)
        self.assertIsNone(made["host_id"])
        self.assertEqual(len(made["token"]), 43)
        self.assertIn(made["token"], made["invitation"])
        self.assertEqual(made["expires_at"], moment(WALL + 86_400_000_000))
        self.end("agent.list")
        self.assertNotIn(made["token"], json.dumps(self.rows))

    def test_names(self) -> None:
        """A new host's name can be typed, shown and told apart from a path; others are refused."""
        for name in ("web-1", "a.b.example", "vm_2", "ünï", "x" * 253):
            self.issue(name, None)
        for name in ("", " ", "bad name", "a/", "-x", "a\n", "x" * 254, "\u202ea", "a\x9b"):
            error = self.refused("agent.issue", name=name)
            self.assertEqual(error.code, "bad_request")
            self.assertIn("name", str(error))

    def serve(self, url: str, address: str, **server: Any) -> None:
        """Let the server have an own URL, an address and settings."""
        table = ServerTable(listen=(f"tcp:{address}",), **server)
        self.fleet.settings = ServerSettings(server=table)
        self.fleet.own_url = url
        self.fleet.addresses[:] = [address]

    def test_what_invitations_name(self) -> None:
        """Agents refuse ws:// to other machines: wss:// is named where TLS is a proxy's (F20)."""
        public = "wss://logs.example/ws/agent"
        for url, server, named, hinted in (
            ("ws://vm:1/ws/agent", {"tls_terminated_externally": True}, "wss://vm:1/", True),
            ("ws://127.0.0.1:1/ws/agent", {"tls_terminated_externally": True}, "ws://127.", True),
            ("ws://127.0.0.1:1/ws/agent", {}, "ws://127.0.0.1:1/ws/agent#", True),
            ("ws://vm:1/ws/agent", {"allow_insecure": True}, "ws://vm:1/ws/agent#", False),
            ("ws://vm:1/ws/agent", {"public_url": public}, f"{public}#", False),
        ):
            self.serve(url, "0.0.0.0:1", **server)
            made = self.issue(host_id=None)
            self.assertTrue(made["invitation"].startswith(named), made["invitation"])
            self.assertEqual(made["hint"] is not None, hinted)

    def test_where_this_machines_agent_connects(self) -> None:
        """ping tells the loopback URL, whatever the public one is; none where there is none."""
        for address, local in (
            ("0.0.0.0:8701", "ws://127.0.0.1:8701/ws/agent"),
            ("[::]:8701", "ws://[::1]:8701/ws/agent"),
            ("127.0.0.1:8600", "ws://127.0.0.1:8600/ws/agent"),
            ("10.0.0.5:8600", None),
            ("/run/x.sock", None),
        ):
            self.serve("ws://vm:1/ws/agent", address, public_url="wss://logs.example/")
            found = self.end("ping")
            self.assertEqual(
                (found["local_url"], found["public_url"]), (local, "wss://logs.example/")
            )

    def test_issue_may_end_sooner(self) -> None:
        """`expires_in` is in seconds."""
        made = self.end("agent.issue", name="x", expires_in=60)
        self.assertEqual(made["expires_at"], moment(WALL + 60_000_000))

    def test_ids_are_one_whatever_their_case(self) -> None:
        """A host id in capitals is the same host id."""
        self.assertEqual(self.issue(host_id=HOST_A.upper())["host_id"], HOST_A)

    def test_list_and_show(self) -> None:
        """A row has what is known of a host, and no hash (F23)."""
        self.issue()
        self.assertEqual(self.end("agent.list"), {"count": 1})
        [row] = self.rows
        self.assertEqual(
            (row["name"], row["host_id"], row["state"], row["connected"]),
            ("web1", HOST_A, "never_connected", False),
        )
        self.assertFalse([name for name in row if "hash" in name])
        for ref in ("web1", HOST_A):
            self.end("agent.show", host=ref)
            self.assertEqual(self.rows[0]["host_id"], HOST_A)

    def test_a_connected_host_is_active(self) -> None:
        """A host that is connected with its old token is active, though its row waits for
        the new one."""
        self.issue()
        live = Live(Nobody(), "session", WALL)  # type: ignore[arg-type]
        self.patch(self.fleet, "live", {HOST_A: live}.get)
        self.end("agent.list")
        [row] = self.rows
        self.assertEqual((row["state"], row["connected"]), ("active", True))

    def test_nobody(self) -> None:
        """A host that is not there is not_found, in each op."""
        for op in ("agent.show", "agent.rotate", "agent.revoke", "agent.forget", "gaps"):
            self.assertEqual(self.refused(op, host="nobody").code, "not_found", op)

    def test_an_ambiguous_name_names_the_candidates(self) -> None:
        """A name of two hosts is refused, and both ids are told (F39)."""
        self.issue("web", HOST_A)
        self.issue("web", HOST_B)
        for op in ("agent.show", "agent.rotate", "agent.revoke", "agent.forget"):
            error = self.refused(op, host="web")
            self.assertEqual(error.code, "ambiguous")
            assert error.hint is not None
            self.assertIn(HOST_A, error.hint)
            self.assertIn(HOST_B, error.hint)
        self.end("agent.show", host=HOST_B)

    def test_revoke_and_forget(self) -> None:
        """A revoked host has no token to rotate; a forgotten one is gone (F8)."""
        self.issue()
        self.assertEqual(self.end("agent.revoke", host="web1")["host_id"], HOST_A)
        self.end("agent.show", host="web1")
        self.assertEqual(self.rows[0]["state"], "revoked")
        self.assertEqual(self.refused("agent.rotate", host="web1").code, "revoked")
        self.end("agent.forget", host="web1")
        self.end("agent.list")
        self.assertEqual(self.rows, [])

    def test_a_host_whose_token_has_ended_cannot_be_rotated(self) -> None:
        """It could not connect to take another: the refusal says what helps (F7)."""
        self.issue()
        ended = {"state": "active", "token_expires_at": WALL - 1}
        self.successResultOf(self.store.update(HOST_A, lambda row: replace(row, **ended)))
        error = self.refused("agent.rotate", host="web1")
        self.assertEqual(error.code, "locked_out")
        self.assertIn("agent issue", error.hint or "")

    def test_a_name_has_one_unused_invitation(self) -> None:
        """A second one for the name takes the place of the first, and says so (F6)."""
        first, second = self.issue(host_id=None), self.issue(host_id=None)
        self.assertEqual((first["replaced"], second["replaced"]), (False, True))
        self.end("agent.list")
        [row] = self.rows
        self.assertEqual(row["token_expires_at"], second["expires_at"])
        [record] = self.successResultOf(self.store.find("web1"))
        self.assertEqual(record.token_hash, tokens.hash_token(second["token"]))

    def test_an_invitation_that_was_claimed_meanwhile_is_not_replaced(self) -> None:
        """A hello may spend it between the look and the write: then a new row is made."""
        self.issue(host_id=None)
        update_row = self.store.update_row

        def claimed(key: int, change: Any) -> Any:
            update_row(key, lambda row: replace(row, host_id=HOST_B, state="active"))
            return update_row(key, change)

        self.patch(self.store, "update_row", claimed)
        self.assertFalse(self.issue(host_id=None)["replaced"])
        found = self.successResultOf(self.store.find("web1"))
        self.assertEqual([row.host_id for row in found], [HOST_B, None])

    def test_an_unused_invitation_is_withdrawn(self) -> None:
        """revoke and forget take an invitation's row away: it has no id to be revoked by."""
        for op in ("agent.revoke", "agent.forget"):
            self.issue(host_id=None)
            end = self.end(op, host="web1")
            self.assertEqual(end, {"host_id": None, "name": "web1", "withdrawn": True})
            self.assertEqual(self.end("agent.list")["count"], 0)

    def test_an_invitation_beside_a_host_of_its_name(self) -> None:
        """F39: what destroys wants to be told which; each can be named. Elsewhere the host
        that enrolled is meant."""
        self.issue("web1", HOST_A)
        self.store.update(HOST_A, lambda row: replace(row, state="disconnected"))
        self.issue("web1", None)
        self.end("agent.show", host="web1")
        self.assertEqual(self.rows[0]["host_id"], HOST_A)
        hint = self.refused("agent.forget", host="web1").hint
        assert hint is not None
        self.assertIn(HOST_A, hint)
        [key] = re.findall(r"key:\d+", hint)
        self.end("agent.forget", host=key)
        self.end("agent.list")
        self.assertEqual([row["host_id"] for row in self.rows], [HOST_A])

    def test_arguments_are_checked(self) -> None:
        """Missing, unknown and wrong arguments are bad_request."""
        for op, args in (
            ("agent.issue", {}),
            ("agent.issue", {"name": ""}),
            ("agent.issue", {"name": "a\nb"}),
            ("agent.issue", {"name": "x", "host_id": "y"}),
            ("agent.issue", {"name": "x", "expires_in": 0}),
            ("agent.show", {"host": 1}),
            ("agent.list", {"unknown": 1}),
            ("search", {"limit": 0}),
            ("search", {"order": "sideways"}),
            ("search", {"severity": "loud"}),
            ("search", {"since": "2026-05-16T19:42:00"}),
            ("search.tail", {"last": 1, "after": 1}),
            ("search.tail", {"after": -1}),
        ):
            self.assertEqual(self.refused(op, **args).code, "bad_request", (op, args))
        told = str(self.refused("search", order="sideways"))
        self.assertIn("expected one of newest_first, oldest_first", told)


class Searches(AdminCase):
    def setUp(self) -> None:
        super().setUp()
        self.issue()

    def test_an_entry_reads_well(self) -> None:
        """A row has names and times for people, metadata as JSON, on one line."""
        self.store_lines("one two", metadata=b'{\n"a": "b\\n"}')
        self.end("search", text="two")
        [row] = self.rows
        self.assertEqual(
            {name: row[name] for name in ("host", "seq", "ts", "severity", "message", "source")},
            {
                "host": "web1",
                "seq": 1,
                "ts": "2026-05-16T19:42:00.000000Z",
                "severity": "warning",
                "message": "one two",
                "source": "file:/var/log/x",
            },
        )
        self.assertEqual(row["metadata"], {"a": "b\n"})
        self.assertEqual(row["received_at"], moment(WALL))

    def test_filters(self) -> None:
        """Each filter selects."""
        self.store_lines("alpha", "beta")
        for args, count in (
            ({}, 2),
            ({"text": "alpha"}, 1),
            ({"hosts": ["web1"]}, 2),
            ({"apps": ["other"]}, 0),
            ({"sources": ["file:*"]}, 2),
            ({"severity": "err"}, 0),
            ({"severity": "warning"}, 2),
            ({"since": "2026-05-16T19:42:01Z"}, 1),
            ({"until": "2026-05-16T21:42:01+02:00"}, 1),
        ):
            self.end("search", **args)
            self.assertEqual(len(self.rows), count, args)

    def test_pages_join(self) -> None:
        """Whatever the limit, following the cursor gives each entry once, in either order."""
        lines = [f"line {n}" for n in range(60)]
        self.store_lines(*lines)
        for order, expected in (("oldest_first", lines), ("newest_first", lines[::-1])):
            for limit in (1, 7, 59, 60, 1000):
                found: list[str] = []
                cursor = None
                while True:
                    end = self.end("search", limit=limit, cursor=cursor, order=order)
                    found += [row["message"] for row in self.rows]
                    cursor = end["cursor"]
                    if cursor is None:
                        break
                self.assertEqual(found, expected)

    def test_long_answers_are_fetched_in_pages(self) -> None:
        """An answer holds no more than PAGE entries in memory at a time."""
        self.patch(admin, "PAGE", 10)
        self.store_lines(*(f"line {n}" for n in range(55)))
        limits: list[int] = []
        search = self.store.search

        def counted(which: Any, limit: int, *rest: Any) -> Any:
            limits.append(limit)
            return search(which, limit, *rest)

        self.patch(self.store, "search", counted)
        self.end("search", limit=32)
        self.assertEqual(limits, [10, 10, 10, 2])
        self.assertEqual(len(self.rows), 32)

    def test_a_bad_cursor(self) -> None:
        """A cursor that is none fails, it does not find nothing (A62)."""
        self.failureResultOf(self.begin("search", cursor="nonsense"), BadQuery)


class Tails(AdminCase):
    def setUp(self) -> None:
        super().setUp()
        self.issue()
        self.store_lines(*(f"line {n}" for n in range(1, 31)))

    def messages(self) -> list[str]:
        return [row["message"] for row in self.rows]

    def test_behind_what_the_store_never_had(self) -> None:
        """A position beyond a restored store's end is refused, else it would wait in silence
        for entries that it then leaves out (F26)."""
        for follow in (True, False):
            refused = self.refused("search.tail", after=10**6, follow=follow)
            self.assertEqual(refused.code, "store_restored", "it would wait in silence (F26)")

    def test_the_last(self) -> None:
        """`last` gives the newest entries, oldest of them first, and where to go on."""
        self.assertEqual(self.end("search.tail", last=3), {"cursor": 30})
        self.assertEqual(self.messages(), ["line 28", "line 29", "line 30"])
        self.end("search.tail")
        self.assertEqual(len(self.rows), 10)
        self.assertEqual(self.end("search.tail", last=0), {"cursor": 30})
        self.assertEqual(self.rows, [])

    def test_behind_a_cursor(self) -> None:
        """`after` gives what was stored behind it, `limit` at most, and joins (A64)."""
        self.assertEqual(self.end("search.tail", after=25, limit=3), {"cursor": 28})
        self.assertEqual(self.messages(), ["line 26", "line 27", "line 28"])
        self.end("search.tail", after=28)
        self.assertEqual(self.messages(), ["line 29", "line 30"])

    def test_following(self) -> None:
        """What is stored later comes as it is stored, each once, without a poll between."""
        tail = self.begin("search.tail", after=28, follow=True)
        self.assertEqual(self.messages(), ["line 29", "line 30"])
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.store_lines("line 31")
        self.clock.advance(admin.FOLLOW_PAUSE)
        self.store_lines("line 32", "line 33")
        self.clock.advance(admin.FOLLOW_PAUSE)
        self.assertEqual(self.messages(), [f"line {n}" for n in range(29, 34)])
        self.assertNoResult(tail)
        tail.addErrback(lambda failure: failure.trap(CancelledError))
        tail.cancel()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.fleet.writer._commit_waits, set())

    def test_following_with_a_filter(self) -> None:
        """Entries that are not meant do not stop the tail from going on."""
        tail = self.begin("search.tail", last=0, follow=True, text="wanted")
        for n in range(5):
            self.store_lines(f"other {n}", f"wanted {n}")
            self.clock.advance(admin.FOLLOW_PAUSE)
        self.assertEqual(self.messages(), [f"wanted {n}" for n in range(5)])
        tail.addErrback(lambda failure: failure.trap(CancelledError))
        tail.cancel()

    def test_a_commit_during_the_query_is_not_missed(self) -> None:
        """An entry that is stored while the tail reads is seen without another commit."""
        real = self.store.tail

        def during(which: Any, after: int, limit: int) -> Any:
            found = real(which, after, limit)
            self.store.tail = real  # type: ignore[method-assign]
            self.store_lines("line 31")
            return found

        self.store.tail = during  # type: ignore[method-assign]
        tail = self.begin("search.tail", after=30, follow=True)
        self.clock.advance(admin.FOLLOW_PAUSE)
        self.assertEqual(self.messages(), ["line 31"])
        tail.addErrback(lambda failure: failure.trap(CancelledError))
        tail.cancel()


class Rest(AdminCase):
    def test_gaps(self) -> None:
        """A gap is told with its host, its range and its size (F13)."""
        self.issue()
        entry = LogEntry(
            seq=5, ts=datetime.now(UTC), severity="info", message="x", source="journald"
        )
        self.fleet.writer.submit(Nobody(), 1, LogBatch(HOST_A, 5, [entry], WALL))
        for args in ({}, {"host": "web1"}, {"host": HOST_A}):
            self.end("gaps", **args)
            [row] = self.rows
            self.assertEqual(
                (row["host"], row["first"], row["last"], row["entries"]), ("web1", 1, 4, 4)
            )
        self.end("agent.list")
        self.assertEqual(self.rows[0]["lost_entries"], 4)

    def test_status_and_ping(self) -> None:
        """The server tells its version, where it listens and what it does."""
        self.issue()
        self.assertEqual(self.end("ping")["version"], "0.1.0")
        status = self.end("server.status")
        self.assertEqual(status["listen"], ["127.0.0.1:8600"])
        self.assertEqual(status["hosts"], {"never_connected": 1})
        self.assertEqual(status["ingest"]["waiting_bytes"], 0)
        self.assertEqual((status["store"]["made_at"], status["store"]["damaged"]), (None, 0))
        self.assertEqual(status["warnings"], [])

    def test_times(self) -> None:
        """Times are RFC 3339 in UTC to the microsecond."""
        self.assertEqual(moment(0), "1970-01-01T00:00:00.000000Z")
        self.assertEqual(moment(1_778_960_571_501_002), "2026-05-16T19:42:51.501002Z")
        self.assertIsNone(moment(None))
