"""A real server and store, with an agent by hand: probes, samples, configs, quota, audits."""

from __future__ import annotations

import shutil
import tempfile
import threading
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests import wire
from tests.integration.processes import Connection, ServerProcess
from tests.wire import HOST_ID, PING, PONG, frame

DISK = "fs.disk_usage"
CAPABILITIES = {
    "supported_probes": [DISK],
    "sources": ["file"],
    "max_batch_entries": 1000,
    "compression": [],
}


class Orders(SynchronousTestCase):
    def setUp(self) -> None:
        state = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, state, ignore_errors=True)
        self.state = state

    def server(self, **env: str) -> ServerProcess:
        server = ServerProcess(self.state, **env)
        self.addCleanup(server.end)
        return server.started()

    def session(self, server: ServerProcess, token: str) -> tuple[Connection, Any]:
        """A session that can run the disk's probe, and its HelloResult."""
        connection = server.connect()
        self.addCleanup(connection.socket.close)
        result = connection.call(wire.hello(token, capabilities=CAPABILITIES))["result"]
        return connection, result

    def next_message(self, connection: Connection) -> Any:
        """The next text message; pings are answered on the way."""
        while (found := connection.frame()).opcode == PING:
            connection.send(frame(PONG, found.payload))
        return found.json

    def test_a_probe_and_its_record_outlive_the_server(self) -> None:
        """§4.6: through socket, router, wire and back; the record is there after kill -9."""
        server = self.server()
        connection, _ = self.session(server, server.issue())
        said: list[Any] = []

        def run() -> None:
            with server.admin() as admin:
                said.append(admin.call("probe.run", host="testhost", probe=DISK, args={"a": 1}))

        asking = threading.Thread(target=run)
        asking.start()
        request = self.next_message(connection)
        self.assertEqual(request["params"], {"probe": DISK, "args": {"a": 1}, "timeout_ms": 10_000})
        output = {"output": {"free": 7}, "exit_code": 0, "stderr": None, "duration_ms": 3}
        connection.send(wire.text({"jsonrpc": "2.0", "id": request["id"], "result": output}))
        asking.join(10)
        [([row], end)] = said
        self.assertEqual((end["outcome"], row["output"]), ("ok", {"free": 7}))
        server.kill()
        with self.server().admin() as admin:
            self.assertEqual(admin.call("probe.history", host="testhost")[0], [row])

    def test_a_config_reaches_live_hosts_and_later_hellos(self) -> None:
        """§4.8: config.update at once; after a restart of the server it is in the HelloResult."""
        server = self.server()
        connection, result = self.session(server, server.issue())
        with server.admin() as admin:
            admin.call("group.set", host="testhost", groups=["web"])
            end = admin.one("config.set", group="web", config={"flush_interval_ms": 50})
            self.assertEqual(end["told"], [HOST_ID])
        update = self.next_message(connection)
        wanted = result["config"] | {"flush_interval_ms": 50}
        self.assertEqual(
            (update["method"], update["params"]), ("config.update", {"config": wanted})
        )
        server.kill()
        _, result = self.session(self.server(), result["rotated_token"])
        self.assertEqual(result["config"], wanted)

    def test_samples_are_stored(self) -> None:
        """F24: metrics.push counts what SQLite holds."""
        server = self.server()
        connection, _ = self.session(server, server.issue())
        samples = [{"name": f"m{n}", "value": n / 2, "labels": {"n": str(n)}} for n in range(512)]
        params = {"ts": "2026-05-16T19:43:00Z", "samples": samples}
        answer = connection.call(wire.request(5, "metrics.push", params))
        self.assertEqual(answer["result"]["accepted"] + answer["result"]["dropped"], 512)
        self.assertGreater(answer["result"]["accepted"], 0)

    def test_the_quota_is_a_setting(self) -> None:
        """-32030 with retry_after_ms once a host exceeds what is configured (§5)."""
        server = self.server(CORTEXTX_SERVER_QUOTA_ENTRIES_PER_SEC="10")
        connection, _ = self.session(server, server.issue())
        self.assertIn("result", connection.call(wire.push(2, 1, 20)))
        error = connection.call(wire.push(3, 21, 10))["error"]
        self.assertEqual((error["code"], error["message"]), (-32030, "QuotaExceeded"))
        self.assertTrue(0 < error["data"]["retry_after_ms"] <= 1000)

    def test_an_audit_tells_gaps_by_their_causes(self) -> None:
        """F13, F37: what the agent says of its loss is the gap's cause in the audit."""
        server = self.server()
        connection, _ = self.session(server, server.issue())
        connection.call(wire.push(2, 1, 5))
        connection.call(wire.push(3, 9, 1))
        lost = {"first": 6, "last": 8, "count": 3, "reason": "evicted", "detail": ""}
        word = wire.push(4, 10)
        word["params"]["entries"][0] |= {
            "source": "custom:cortextx",
            "metadata": {"cortextx": {"lost": lost}},
        }
        connection.call(word)
        with server.admin() as admin:
            rows, end = admin.call("agent.audit", host="testhost")
        self.assertEqual((end["complete"], end["missing_entries"]), (False, 3))
        self.assertEqual(
            [(row["first"], row["last"], row["cause"]) for row in rows], [(6, 8, "evicted")]
        )
