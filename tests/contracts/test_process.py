"""A real server process: what it sends fits the schemas, and nothing malformed brings it down."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests import wire
from tests.contracts import examples, schemas
from tests.contracts.mutate import Mutator
from tests.integration.processes import Connection, ServerProcess
from tests.wire import CLOSE, PING, PONG, TEXT, frame

MESSAGES = 300
FRAMES = 150
STREAMS = 60
MEMORY_KIB = 48 * 1024
"""How much the process may grow over all of it; a leaked message of 1 MiB each would be more."""


class Real(SynchronousTestCase):
    def setUp(self) -> None:
        state = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, state, ignore_errors=True)
        self.server = ServerProcess(state)
        self.addCleanup(self.server.end)
        connection, self.token = self.server.started().enrolled()
        connection.socket.close()

    def connected(self) -> Connection:
        connection = self.server.connect()
        connection.socket.settimeout(10.0)
        self.addCleanup(connection.socket.close)
        return connection

    def active(self) -> tuple[Connection, int]:
        """A session of the enrolled host, and its accepted_seq."""
        connection = self.connected()
        answer = connection.call(wire.hello(self.token))
        return connection, int(answer["result"]["accepted_seq"])

    def heard(self, connection: Connection, asked: dict[Any, str] | None, mark: bytes) -> list[Any]:
        """The checked messages that come before the pong with `mark`, or until the close.

        Without `asked` any method may have been asked for.
        """
        found: list[Any] = []
        with contextlib.suppress(EOFError, OSError):
            while (one := connection.frame()) != wire.Frame(PONG, mark):
                if one.opcode == TEXT:
                    self.check(one, asked)
                    found.append(one.json)
                elif one.opcode == PING:
                    connection.send(frame(PONG, one.payload))
                elif one.opcode == CLOSE:
                    found.append(one.code)
                    break
        return found

    def check(self, one: wire.Frame, asked: dict[Any, str] | None) -> None:
        """A message of the server fits the schemas."""
        if asked is None:
            id = one.json.get("id")
            asked = {}
            for method in schemas.RESULTS:
                if not schemas.server_faults(one.json, {id: method}):
                    asked = {id: method}
        self.assertEqual(schemas.server_faults(one.json, asked), [], one.payload)

    def codes(self, found: list[Any]) -> list[Any]:
        """Error codes, close codes, and `ok` for results."""
        return [
            one if isinstance(one, int) else one["error"]["code"] if "error" in one
            else "ok" if "result" in one else one["method"]
            for one in found
        ]  # fmt: skip

    def test_s4_what_a_server_sends_fits_the_schemas(self) -> None:
        """A tour through every method an agent has: results, errors and notifications."""
        connection, accepted = self.active()
        first = accepted + 1
        tour: tuple[tuple[str, Any, Any], ...] = (
            ("logs.push", examples.push(first, 3), "ok"),
            ("logs.push", examples.push(first, 3), "ok"),
            ("logs.push", examples.push(first + 10, 2), "ok"),
            ("metrics.push", examples.METRICS, "ok"),
            ("metrics.push", {}, -32602),
            ("metrics.push", {"ts": examples.TS, "samples": [1] * 513}, -32008),
            ("agent.hello", wire.hello(self.token)["params"], -32600),
            ("agent.heartbeat", examples.HEARTBEAT, -32600),
            ("no.such", None, -32601),
            ("logs.push", examples.push(first + 12, 1, severity="x"), -32602),
            ("logs.push", examples.push(first + 13), -32020),
            ("logs.push", examples.push(first + 12, 2), "ok"),
        )
        for id, (method, params, expected) in enumerate(tour, 1000):
            # The answer to a fence stands before the next message: as slow agents have it.
            connection.send(wire.text(wire.request(id, method, params)))
            found = self.codes([self.answer(connection, {id: method})])
            self.assertEqual(found, [expected], (method, params))
        connection.send(wire.text({"jsonrpc": "2.0", "method": "agent.heartbeat",
                                   "params": examples.HEARTBEAT}))  # fmt: skip
        with self.server.admin() as admin:
            admin.one("agent.revoke", host=wire.HOST_ID)
        self.assertEqual(self.codes(self.heard(connection, {}, b"")), ["agent.shutdown", 4002])

    def answer(self, connection: Connection, asked: dict[Any, str]) -> Any:
        """The next message, checked; pings before it, fences too, stay unanswered."""
        while (one := connection.frame()).opcode != TEXT:
            pass
        self.check(one, asked)
        return one.json

    def test_refused_hellos_fit_the_schemas(self) -> None:
        """Each refusal of a hello is an error of the contract, then its close."""
        token = self.token
        for message, codes in (
            ([], [-32600, 4001]),
            (wire.request(1, "logs.push", examples.PUSH), [-32000, 4001]),
            (wire.hello("x" * 43), [-32001, 4001]),
            (wire.hello(token, protocol_version=2), [-32003, 4001]),
            (wire.hello(token, hostname=""), [-32602, 4001]),
        ):
            connection = self.connected()
            connection.send(wire.text(message))
            found = self.heard(connection, {1: "agent.hello"}, b"")
            self.assertEqual(self.codes(found), codes)
        with self.server.admin() as admin:
            admin.one("agent.revoke", host=wire.HOST_ID)
        connection = self.connected()
        connection.send(wire.text(wire.hello(token)))
        found = self.heard(connection, {1: "agent.hello"}, b"")
        self.assertEqual(self.codes(found), [-32002, 4002])

    def test_f29_of_racing_hellos_one_wins(self) -> None:
        """Eight hosts that send the same one-time token at once: one result, seven -32001."""
        token = self.server.issue("raced", None)
        hosts = [f"00000000-0000-4000-8000-0000000000{n:02}" for n in range(8)]
        racing = [self.connected() for _ in hosts]
        for connection, host in zip(racing, hosts, strict=True):
            connection.send(wire.text(wire.hello(token, host)))
        answers = [self.answer(connection, {1: "agent.hello"}) for connection in racing]
        codes = self.codes(answers)
        self.assertEqual(sorted(codes, key=str), [-32001] * 7 + ["ok"])

    def test_f13_f38_f39_what_the_server_knows_is_shown(self) -> None:
        """Through its private admin socket: an acked line is found at once (F38), a gap is a
        row of its own and counted with the host (F13)."""
        connection, accepted = self.active()
        for n, jump in enumerate((1, 3, 40)):
            first = accepted + jump
            message = f"needle{n} in a line"
            answer = connection.call(
                wire.request(n + 10, "logs.push", examples.push(first, message=message))
            )
            self.assertEqual(answer["result"]["up_to_seq"], first)
            with self.server.admin() as admin:
                rows, _ = admin.call("search", text=f"needle{n}")
            self.assertEqual([row["seq"] for row in rows], [first])
        with self.server.admin() as admin:
            gaps, _ = admin.call("gaps", host=wire.HOST_ID)
            [host] = admin.call("agent.list")[0]
        seqs = sorted((gap["first"] - accepted, gap["last"] - accepted) for gap in gaps)
        self.assertEqual(seqs, [(2, 2), (4, 39)])
        self.assertEqual((host["gap_count"], host["lost_entries"]), (2, 37))
        path = f"{self.server.state}/run/admin.sock"
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)

    def memory(self) -> int:
        """Resident KiB of the process."""
        with open(f"/proc/{self.server.process.pid}/status") as status:
            [line] = [line for line in status if line.startswith("VmRSS")]
        return int(line.split()[1])

    def test_malformed_messages_frames_and_streams(self) -> None:
        """Hundreds of each leave the server up, its memory bounded, its log free of
        tracebacks, and a good host served as before."""
        self.storm(Mutator(10), 40)
        before = self.memory()
        self.storm(Mutator(11), MESSAGES)
        broken = Mutator(12)
        for _ in range(FRAMES):
            connection, _ = self.active()
            with contextlib.suppress(OSError, EOFError):
                connection.send(broken.frame() + frame(PING, b"m"))
                connection.socket.settimeout(0.05)
                connection.frame()
            connection.socket.close()
        chance = Random(13)
        for _ in range(STREAMS):
            with Connection(self.server.address) as connection, contextlib.suppress(OSError):
                head = wire.upgrade()
                cut = chance.randint(0, len(head))
                noise = broken.noise()
                connection.send(head[:cut] + noise + chance.choice((head[cut:], b"\r\n\r\n")))
        self.assertIsNone(self.server.process.poll())
        self.assertLess(self.memory() - before, MEMORY_KIB)
        self.assertNotIn("Traceback", self.server.log)
        connection, accepted = self.active()
        answer = connection.call(wire.request(5, "logs.push", examples.push(accepted + 1)))
        self.assertEqual(answer["result"]["up_to_seq"], accepted + 1)

    def storm(self, broken: Mutator, count: int) -> None:
        """So many malformed messages on as many connections as that takes."""
        connection, _ = self.active()
        for n in range(count):
            payload = broken.payload()
            mark = b"%d" % n
            try:
                connection.send(frame(TEXT, payload) + frame(PING, mark))
            except OSError:
                connection, _ = self.active()
                continue
            found = self.heard(connection, None, mark)
            closes = [one for one in found if isinstance(one, int)]
            if closes:
                self.assertEqual(closes, [1007], payload)
                connection.socket.close()
                connection, _ = self.active()
        connection.socket.close()
