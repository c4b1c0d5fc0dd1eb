"""The HTTP API of a real server process, over real sockets, held to its own description."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from typing import Any
from unittest import TestCase

from tests import wire
from tests.integration.processes import ServerProcess
from tests.web.described import Description

HOST_ID = wire.HOST_ID
WAIT_SECONDS = 10.0


class HttpCase(TestCase):
    """A server of its own, one host with a session, and a token of each role."""

    def setUp(self) -> None:
        import shutil
        import tempfile

        self.state = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.state, ignore_errors=True)
        self.server = self.start()
        self.tokens = {role: self.add_token(role) for role in ("viewer", "operator", "admin")}

    def start(self, listen: str | None = None) -> ServerProcess:
        server = ServerProcess(self.state, listen=listen)
        self.addCleanup(server.end)
        return server.started()

    def add_token(self, role: str) -> str:
        with self.server.admin() as admin:
            return str(admin.one("token.add", name=f"my-{role}", role=role)["token"])

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(*self.server.address, timeout=WAIT_SECONDS)
        self.addCleanup(connection.close)
        return connection

    def ask(
        self, method: str, path: str, role: str | None = "admin", body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = self.connect()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if role is not None:
            sent["Authorization"] = f"Bearer {self.tokens[role]}"
        content = None
        if body is not None:
            content, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        connection.request(method, path, content, sent)
        answer = connection.getresponse()
        told = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, told, answer.read()


class Described(HttpCase):
    def test_every_operation(self) -> None:
        """Each operation of the document works on a real server with a SQLite store, and
        answers as it is described there."""
        status, _, document = self.ask("GET", "/api/v1/openapi.json", role=None)
        self.assertEqual(status, 200)
        description = Description(json.loads(document))
        connection, _ = self.server.enrolled()
        with connection:
            connection.call(wire.push(2, 1, 3))
            connection.call(wire.push(3, 10, 1))
            for method, path, body in (
                ("GET", "/whoami", None),
                ("GET", "/status", None),
                ("GET", "/search?text=line&host=testhost&severity_min=info&limit=1", None),
                ("GET", "/search?order=oldest_first", None),
                ("GET", "/histogram?buckets=5", None),
                ("GET", "/entries/2/context?before=1", None),
                ("GET", "/values/app", None),
                ("GET", "/values/source?prefix=file", None),
                ("GET", "/values/host", None),
                ("GET", "/gaps", None),
                ("GET", f"/gaps?host={HOST_ID}", None),
                ("GET", "/hosts", None),
                ("GET", "/hosts/testhost", None),
                ("GET", f"/hosts/{HOST_ID}/audit", None),
                ("GET", "/hosts/testhost/metrics", None),
                ("PUT", "/hosts/testhost/groups", {"groups": ["web"]}),
                ("PUT", "/groups/web/config", {"config": {"probe_concurrency": 2}}),
                ("PUT", "/hosts/testhost/config", {"config": {"flush_interval_ms": 100}}),
                ("PUT", "/config", {"config": {"heartbeat_interval_secs": 60}}),
                ("GET", "/hosts/testhost/config", None),
                ("GET", "/config", None),
                ("GET", "/groups", None),
                ("POST", "/config/push", {}),
                ("POST", "/hosts/testhost/probes", {"probe": "host.uptime"}),
                ("GET", "/probes?limit=1", None),
                ("POST", "/hosts", {"name": "another"}),
                ("DELETE", "/hosts/another", None),
                ("POST", "/tokens", {"name": "ci", "role": "viewer", "expires_in": 60}),
                ("GET", "/tokens", None),
                ("DELETE", "/tokens/ci", None),
                ("POST", "/hosts/testhost/rotate", {"expire_in": 60}),
                ("POST", "/hosts/testhost/revoke", None),
                ("DELETE", "/hosts/testhost", None),
                ("GET", "/audit?limit=3", None),
            ):
                status, headers, content = self.ask(method, f"/api/v1{path}", body=body)
                self.assertLess(status, 300, (method, path, content))
                description.check(method, path.partition("?")[0], status, headers, content)
        done = {name for name, status in description.seen if status < 300}
        every = {operation["operationId"] for _, _, operation in description.operations}
        self.assertEqual(every - done, {"tail"})

    def test_refusals(self) -> None:
        """Requests that are refused are refused as described."""
        _, _, document = self.ask("GET", "/api/v1/openapi.json", role=None)
        description = Description(json.loads(document))
        for method, path, role, body, expected in (
            ("GET", "/search", None, None, 401),
            ("GET", "/tokens", "operator", None, 403),
            ("GET", "/search?limit=0", "viewer", None, 400),
            ("GET", "/search?host=nobody", "viewer", None, 404),
            ("GET", "/entries/99/context", "viewer", None, 404),
            ("GET", "/nonesuch", "viewer", None, 404),
            ("DELETE", "/search", "admin", None, 405),
            ("POST", "/tokens", "admin", {"name": "my-viewer", "role": "viewer"}, 409),
            ("PUT", "/config", "operator", {"config": {"probe_concurrency": 0}}, 400),
        ):
            status, headers, content = self.ask(method, f"/api/v1{path}", role, body)
            self.assertEqual(status, expected, (method, path, content))
            description.check(method, path.partition("?")[0], status, headers, content)
        self.assertEqual(self.ask("GET", "/api/v1/search", Host="evil.example")[0], 421)
        self.assertEqual(self.ask("GET", "/api/v1/search", Origin="https://evil.example")[0], 403)

    def test_ready(self) -> None:
        """/readyz and /healthz answer 200 on a server that is up."""
        self.assertEqual(self.ask("GET", "/readyz", role=None)[0], 200)
        self.assertEqual(self.ask("GET", "/healthz", role=None)[0], 200)


class Tailing(HttpCase):
    def tail(self, **headers: str) -> http.client.HTTPResponse:
        connection = self.connect()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers["Authorization"] = f"Bearer {self.tokens['viewer']}"
        connection.request("GET", "/api/v1/tail", headers=headers)
        answer = connection.getresponse()
        self.assertEqual(answer.status, 200)
        return answer

    def ids(self, answer: http.client.HTTPResponse) -> Iterator[int]:
        """The ids of the events as they come."""
        with contextlib.suppress(TimeoutError, http.client.IncompleteRead, ConnectionError):
            while line := answer.readline():
                if line.startswith(b"id: "):
                    yield int(line[4:])

    def test_it_goes_on_after_a_restart(self) -> None:
        """A tail that was cut off by kill -9 goes on behind its last event, with nothing
        doubled or left out (A64)."""
        connection, token = self.server.enrolled()
        answer = self.tail(Last_Event_ID="0")
        connection.call(wire.push(2, 1, 500))
        seen: list[int] = []
        for id in self.ids(answer):
            seen.append(id)
            if id == 300:
                break
        host, port = self.server.address
        self.server.kill()
        connection.socket.close()
        self.server = self.start(f"tcp:{port}:interface={host}")
        again = self.tail(Last_Event_ID="300")
        connection = self.server.connect()
        self.addCleanup(connection.socket.close)
        connection.call(wire.hello(token))
        connection.call(wire.push(2, 501, 10))
        for id in self.ids(again):
            seen.append(id)
            if id == 510:
                break
        self.assertEqual(seen, list(range(1, 511)))

    def test_a_client_that_does_not_read_costs_nothing(self) -> None:
        """A tail whose client reads nothing holds up neither ingest nor other tails, and
        the server keeps little of it in memory."""
        connection, _ = self.server.enrolled()
        with connection:
            asleep = self.tail(Last_Event_ID="0")
            awake = self.tail(Last_Event_ID="0")
            before = rss(self.server.process.pid)
            for number in range(40):
                connection.call(wire.push(number + 2, number * 500 + 1, 500, "x" * 1000))
            last = 0
            for last in self.ids(awake):
                if last == 20_000:
                    break
            self.assertEqual(last, 20_000)
            grown = rss(self.server.process.pid) - before
            self.assertLess(grown, 60 * 1_048_576)
            for last in self.ids(asleep):
                if last == 20_000:
                    break
            self.assertEqual(last, 20_000)

    def test_a_revoked_token_ends_the_tail(self) -> None:
        """When its token is revoked a tail is cut off within the time that the server says."""
        answer = self.tail()
        with self.server.admin() as admin:
            admin.one("token.revoke", name="my-viewer")
        assert answer.fp is not None
        began = time.monotonic()
        with contextlib.suppress(http.client.IncompleteRead, ConnectionError, TimeoutError):
            while answer.readline():
                pass
        self.assertLess(time.monotonic() - began, 20)


def rss(pid: int) -> int:
    """Resident bytes of a process."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * 4096
