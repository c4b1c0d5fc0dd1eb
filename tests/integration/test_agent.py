"""A real agent process against a scripted server of another make (the `websockets` library)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import msgspec
from twisted.trial.unittest import SynchronousTestCase
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from cortextx.app.cli.client import agent_client
from cortextx.fleet.agent.identity import IdentityFiles
from cortextx.fleet.contract import DEFAULT_AGENT_CONFIG
from tests.integration.agent_faults import agent_pid, memory
from tests.integration.harness import AGENT, Installation

TOKEN = "t" * 43
FRESH = "f" * 43
SESSION = "f3b6c4f7-7a3e-4f7f-9d4d-2f6f0d6fa9a1"
CONFIG = {**msgspec.to_builtins(DEFAULT_AGENT_CONFIG), "log_sources": []}


class ScriptedServer:
    """A WebSocket server on a thread that does what its `script` says of each request.

    `script(request)` answers the members of the response, or None for none. What
    came is kept in `requests`, with the close codes and reasons in `closes`.
    """

    def __init__(self, script: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.closes: list[tuple[int | None, str | None]] = []
        self.connections: list[ServerConnection] = []
        self.subprotocols: list[Any] = ["cortex.v1"]
        self._server: Server = serve(
            self._talk, "127.0.0.1", 0, subprotocols=self.subprotocols, compression=None,
            max_size=1_048_576,
        )  # fmt: skip
        self.port = self._server.socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"ws://127.0.0.1:{self.port}/ws/agent"

    def close(self) -> None:
        """Cut all connections and listen no more."""
        self._server.shutdown()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.socket.shutdown(2)
        self._thread.join(5)

    def messages(self) -> list[str]:
        """The messages of all entries that were pushed, in order."""
        pushes = [r for r in self.requests if r.get("method") == "logs.push"]
        return [entry["message"] for push in pushes for entry in push["params"]["entries"]]

    def hellos(self) -> list[dict[str, Any]]:
        """The params of all hellos."""
        return [r["params"] for r in self.requests if r.get("method") == "agent.hello"]

    def _talk(self, connection: ServerConnection) -> None:
        self.connections.append(connection)
        try:
            for text in connection:
                request = json.loads(text)
                self.requests.append(request)
                answer = self.script(request)
                if answer is not None:
                    answer = {"jsonrpc": "2.0", "id": request["id"], **answer}
                    connection.send(json.dumps(answer))
        except ConnectionClosed:
            pass
        self.closes.append((connection.close_code, connection.close_reason))


def welcome(accepted: int = 0, **more: Any) -> dict[str, Any]:
    """The answer to a hello."""
    result = {
        "server_version": "9.9.9",
        "server_time": "2026-05-16T20:00:00Z",
        "accepted_seq": accepted,
        "session_id": SESSION,
        "config": CONFIG,
    }
    return {"result": {**result, **more}}


def accept(request: dict[str, Any]) -> dict[str, Any] | None:
    """A server that takes everything."""
    match request["method"]:
        case "agent.hello":
            return welcome()
        case "logs.push":
            return {"result": {"up_to_seq": request["params"]["entries"][-1]["seq"]}}
    return None


def error(code: int, **data: Any) -> dict[str, Any]:
    """A refusal."""
    return {"error": {"code": code, "message": "x", "data": data}}


class Agent(SynchronousTestCase):
    """The agent as its peers see it."""

    def setUp(self) -> None:
        self.site = Installation(self)
        self.log = self.site.root / "logs" / "app.log"
        self.log.parent.mkdir()
        self.log.write_text("one\ntwo\n")
        self.files = IdentityFiles(str(self.site.state / "agent"))
        self.site.write_agent_config(
            f'[[sources]]\nkind = "file"\npath = "{self.log.parent}/*.log"\n',
            agent="allow_sources = []\n",
        )

    def serve(self, script: Callable[[dict[str, Any]], dict[str, Any] | None]) -> ScriptedServer:
        """A scripted server, for which this agent is enrolled."""
        server = ScriptedServer(script)
        self.addCleanup(server.close)
        self.files.enrol(server.url, TOKEN)
        return server

    def status(self) -> dict[str, Any]:
        """What the control socket says."""
        with agent_client(str(self.site.state)) as client:
            found: dict[str, Any] = client.one("status")
        return found

    def wait_for_state(self, state: str) -> dict[str, Any]:
        """Wait until the link is in a state; the status of then."""

        def there() -> dict[str, Any] | None:
            found = self.status()
            return found if found["state"] == state else None

        return self.site.wait_until(there, f"the link to be {state}")

    def test_lines_arrive_and_a_stop_says_how_far(self) -> None:
        """The fresh token is stored, lines come in order, and 1000 says final_seq (§3, F42)."""

        def script(request: dict[str, Any]) -> dict[str, Any] | None:
            if request["method"] == "agent.hello":
                return welcome(rotated_token=FRESH)
            return accept(request)

        server = self.serve(script)
        self.site.start_agent()
        self.site.wait_until(lambda: server.messages() == ["one", "two"], "the lines")
        self.assertEqual(self.files.load_token(), FRESH)
        with self.log.open("a") as log:
            log.write("three\n")
        self.site.wait_until(lambda: server.messages() == ["one", "two", "three"], "a new line")
        status = self.wait_for_state("active")
        self.assertEqual((status["auth"], status["backlog_entries"]), ("ok", 0))
        self.assertIn(self.site.stop(AGENT), (0, -signal.SIGTERM))
        self.site.wait_until(lambda: server.closes, "the close")
        self.assertEqual(server.closes, [(1000, "final_seq=3")])
        self.assertFalse((self.site.state / "run" / "cortex-agent.address").exists())
        self.assertNotIn(FRESH, self.site.output(AGENT))

    def test_a_cut_connection_loses_and_doubles_nothing(self) -> None:
        """Acks that never come are made good by the next hello's accepted_seq (§7)."""
        accepted = 0
        stored: list[str] = []
        hellos = 0

        def script(request: dict[str, Any]) -> dict[str, Any] | None:
            nonlocal accepted, hellos
            if request["method"] == "agent.hello":
                hellos += 1
                return welcome(accepted)
            if request["method"] == "logs.push":
                for entry in request["params"]["entries"]:
                    if entry["seq"] > accepted:
                        accepted = entry["seq"]
                        stored.append(entry["message"])
                if hellos < 3:
                    # It is stored, but the answer is lost.
                    raise ConnectionClosed(None, None)
                return {"result": {"up_to_seq": accepted}}
            return None

        server = self.serve(script)
        self.site.start_agent()
        for burst in range(4):
            count = 2 + burst * 50
            self.site.wait_until(lambda n=count: len(stored) == n, f"{count} lines")
            with self.log.open("a") as log:
                log.writelines(f"{n}\n" for n in range(count + 1, count + 51))
        self.site.wait_until(lambda: len(stored) == 202, "all lines")
        self.assertGreaterEqual(hellos, 3)
        self.site.wait_until(lambda: self.status()["backlog_entries"] == 0, "the acks")
        self.assertEqual(stored, ["one", "two", *map(str, range(3, 203))])
        self.assertEqual(server.hellos()[0]["resume_from_seq"], 0)

    def test_refused_token_waits_for_a_retry(self) -> None:
        """-32001: the process stays, says why, and SIGHUP or retry make one attempt each (F34)."""
        good = False

        def script(request: dict[str, Any]) -> dict[str, Any] | None:
            if request["method"] == "agent.hello":
                return welcome() if good else error(-32001)
            return None

        server = self.serve(script)
        self.site.start_agent()
        status = self.wait_for_state("fatal_auth")
        self.assertEqual((status["auth"], status["sources_paused_by"]), ("refused", ["link"]))
        self.assertEqual(self.files.load_token(), TOKEN)
        os.kill(self.site.running[AGENT].pid, signal.SIGHUP)
        self.site.wait_until(lambda: len(server.hellos()) == 2, "the second attempt")
        self.wait_for_state("fatal_auth")
        good = True
        self.files.store_token(FRESH)
        self.site.cortextx("agent", "retry")
        self.wait_for_state("active")
        self.assertEqual([hello["token"] for hello in server.hellos()], [TOKEN, TOKEN, FRESH])

    def test_revoked_deletes_the_token_and_idles(self) -> None:
        """-32002: the token goes, the process stays and its status says so (§3.7, F42)."""
        self.serve(lambda request: error(-32002))
        self.site.start_agent()
        status = self.wait_for_state("revoked")
        self.assertEqual(status["auth"], "revoked")
        self.site.wait_until(lambda: not (self.site.state / "agent" / "token").exists(), "that")

    def test_a_server_that_does_not_confirm_the_subprotocol(self) -> None:
        """Without cortex.v1 in the answer nothing is sent (§2)."""
        server = self.serve(accept)
        server.subprotocols.clear()
        self.site.start_agent()
        self.site.wait_until(lambda: self.status()["last_error"], "the refusal")
        self.assertIn("subprotocol", self.status()["last_error"])
        self.assertEqual(server.requests, [])

    def test_frames_that_are_not_for_v1(self) -> None:
        """A binary frame is closed with 1003, one beyond 1 MiB with 1009 (§2, F31, F42)."""
        rude: list[bytes | str] = [b"x", "x" * 1_048_577]
        server = self.serve(accept)

        def script(request: dict[str, Any]) -> dict[str, Any] | None:
            if rude:
                server.connections[-1].send(rude.pop(0))
                return None
            return accept(request)

        server.script = script
        self.site.start_agent()
        for count in (1, 2):
            # A server that breaks the protocol is left alone for up to a minute.
            self.site.wait_until(lambda n=count: len(server.closes) == n, "the close")
            self.wait_for_state("reconnecting")
            self.site.cortextx("agent", "retry")
        self.wait_for_state("active")
        self.assertEqual([code for code, _ in server.closes], [1003, 1009])

    def test_a_second_agent_is_refused(self) -> None:
        """One process a state directory; the other ends with a message and code 1."""
        self.serve(accept)
        self.site.start_agent()
        first = self.site.running.pop(AGENT)
        self.addCleanup(first.wait)
        self.addCleanup(first.kill)
        with self.assertRaises(AssertionError) as caught:
            self.site.start_agent()
        self.assertIn(f"process {first.pid} runs cortex-agent", str(caught.exception))
        self.assertEqual(self.site.running[AGENT].wait(10), 1)

    def test_memory(self) -> None:
        """An agent that has sent 50,000 lines is soon within its 60 MB, give or take a little,
        and was never far from it."""

        self.log.write_text("".join(f"line {n} {'x' * 200}\n" for n in range(50_000)))
        server = self.serve(accept)
        self.site.start_agent()
        self.site.wait_until(lambda: len(server.messages()) == 50_000, "all lines", 60)
        pid = agent_pid(self.site)
        self.assertLess(memory(pid, "VmHWM"), 75)
        self.site.wait_until(lambda: memory(pid) < 65, "65 MB of memory at most", 15)
