"""Peers that are silent, slow, or gone without a word, seen by real processes.

Waits of the contract are minutes long, so the process under test has a clock that
runs twenty times as fast; what is asserted of times is asserted of that clock.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
import time
from typing import Any

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from cortextx.fleet.agent.identity import IdentityFiles
from tests import wire
from tests.integration.faults import environment, racing_clock, vanish
from tests.integration.harness import AGENT, Installation
from tests.integration.processes import Connection, ServerProcess
from tests.integration.test_agent import TOKEN, ScriptedServer, accept, welcome

TIMES = 20
OTHER = wire.HOST_ID.replace("1f01", "1f02")


class SilentPeers(SynchronousTestCase):
    """A server whose clock races."""

    def setUp(self) -> None:
        self.state = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.state, ignore_errors=True)
        self.server = ServerProcess(
            self.state, CORTEXTX_SERVER_PRESENCE_FLUSH_SECS="0.5", **racing_clock(TIMES)
        )
        self.addCleanup(self.server.end)
        self.server.started()

    def enrolled(self, host_id: str) -> Connection:
        connection, _ = self.server.enrolled(host_id)
        self.addCleanup(connection.socket.close)
        return connection

    def host(self, host_id: str) -> dict[str, Any]:
        with self.server.admin() as admin:
            rows, _ = admin.call("agent.list")
        return next(row for row in rows if row["host_id"] == host_id)

    def gone(self, host_id: str, seconds: float) -> dict[str, Any]:
        """The host's row once it is disconnected, and that is written."""
        end = time.monotonic() + seconds
        while (row := self.host(host_id))["state"] != "disconnected":
            self.assertLess(time.monotonic(), end, row)
            time.sleep(0.05)
        return row

    def test_three_unanswered_pings_end_a_session_and_no_other(self) -> None:
        """F21: a host that sends on and on, but answers no ping, is closed with 1011 after 80 s,
        and the record says why; one that answers stays."""
        mute, lively = self.enrolled(wire.HOST_ID), self.enrolled(OTHER)
        done = threading.Event()

        def live() -> None:
            seq = 1
            while not done.is_set():
                if lively.call(wire.push(seq, seq))["result"]["up_to_seq"] != seq:
                    return
                seq += 1
                time.sleep(0.02)

        beside = threading.Thread(target=live, daemon=True)
        beside.start()
        self.addCleanup(beside.join, 5)
        self.addCleanup(done.set)
        began = time.monotonic()
        mute.socket.settimeout(0.1)
        pings = seq = 0
        code = None
        while code is None and time.monotonic() < began + 10:
            seq += 1
            mute.send(wire.text(wire.push(seq, seq)))
            try:
                frame = mute.frame()
            except TimeoutError:
                continue
            pings += frame.opcode == wire.PING
            if frame.opcode == wire.CLOSE:
                code = frame.code
        lasted = (time.monotonic() - began) * TIMES
        self.assertEqual((code, pings), (1011, 3))
        self.assertTrue(60 < lasted < 120, lasted)
        self.assertEqual(self.gone(wire.HOST_ID, 5)["last_disconnect_reason"], "1011 missed pongs")
        self.assertTrue(self.host(OTHER)["connected"])

    def test_a_peer_that_lost_its_power_is_noticed(self) -> None:
        """A half-open connection, whose peer is gone without FIN or RST, ends within 80 s, and
        the host can come back long before."""
        connection, token = self.server.enrolled()
        try:
            vanish(connection)
        except PermissionError:
            connection.socket.close()
            raise SkipTest("only root can make a connection half-open") from None
        self.assertTrue(self.host(wire.HOST_ID)["connected"])
        self.gone(wire.HOST_ID, 100 / TIMES)
        with self.server.connect() as again:
            self.assertEqual(again.call(wire.hello(token))["result"]["accepted_seq"], 0)

    def test_a_hello_in_dribs_has_five_seconds(self) -> None:
        """F3, F4: a byte now and then is no excuse: the hello is whole in time or it is 4000, and
        a request's head that dribbles in is cut off as well."""
        for upgraded, data in ((True, wire.text(wire.hello())), (False, wire.upgrade())):
            connection = Connection(self.server.address)
            self.addCleanup(connection.socket.close)
            if upgraded:
                connection.upgrade()
            began = time.monotonic()
            ended = False
            code = None
            connection.socket.settimeout(0.02)
            for at in range(len(data)):
                try:
                    connection.send(data[at : at + 1])
                    frame = connection.frame()
                except TimeoutError:
                    continue
                except (EOFError, ConnectionError):
                    ended = True
                    break
                except AssertionError:
                    # An HTTP answer is no frame.
                    ended = True
                    break
                if frame.opcode == wire.CLOSE:
                    ended, code = True, frame.code
                    break
            self.assertTrue(ended)
            self.assertLess((time.monotonic() - began) * TIMES, 40)
            if upgraded:
                self.assertEqual(code, 4000)


class SlowPeers(SynchronousTestCase):
    def test_a_peer_that_reads_nothing_delays_nobody(self) -> None:
        """While one host pushes without ever reading an answer, and another dribbles a push of
        a megabyte in, a third one's pushes are acked at once."""
        state = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, state, ignore_errors=True)
        server = ServerProcess(state)
        self.addCleanup(server.end)
        server.started()
        ids = [wire.HOST_ID.replace("1f01", f"1f{n:02}") for n in range(10, 13)]
        deaf, slow, third = (server.enrolled(host_id)[0] for host_id in ids)
        for connection in (deaf, slow, third):
            self.addCleanup(connection.socket.close)
        done = threading.Event()

        def shout() -> None:
            deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            seq = 1
            try:
                while not done.is_set():
                    deaf.send(wire.text(wire.push(seq, seq, 5)))
                    seq += 5
                    time.sleep(0.001)
            except OSError:
                return

        def dribble() -> None:
            data = wire.text(wire.push(1, 1, 5000))
            try:
                for at in range(0, len(data), 100):
                    if done.is_set():
                        return
                    slow.send(data[at : at + 100])
                    time.sleep(0.002)
            except OSError:
                return

        threads = [threading.Thread(target=one, daemon=True) for one in (shout, dribble)]
        for one in threads:
            one.start()
            self.addCleanup(one.join, 5)
        self.addCleanup(done.set)
        waits = []
        for seq in range(1, 151):
            began = time.monotonic()
            self.assertEqual(third.call(wire.push(seq, seq))["result"]["up_to_seq"], seq)
            waits.append(time.monotonic() - began)
            time.sleep(0.005)
        self.assertLess(sorted(waits)[140], 0.5)
        with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
            facts = dict(line.split(":", 1) for line in file)
        self.assertLess(int(facts["VmRSS"].split()[0]), 200 * 1024)


class SilentServers(SynchronousTestCase):
    """An agent whose clock races, and servers that are there but say nothing."""

    def start(self, server: ScriptedServer) -> Installation:
        self.addCleanup(server.close)
        site = Installation(self)
        log = site.root / "logs" / "app.log"
        log.parent.mkdir()
        log.write_text("one\ntwo\n")
        site.write_agent_config(
            f'[[sources]]\nkind = "file"\npath = "{log.parent}/*.log"\n',
            agent="allow_sources = []\n",
        )
        IdentityFiles(str(site.state / "agent")).enrol(server.url, TOKEN)
        with environment(racing_clock(TIMES)):
            site.start_agent()
        return site

    def test_no_ping_for_seventy_seconds(self) -> None:
        """F36: a session without a ping is given up after 70 s, and the agent comes back."""
        times: list[float] = []

        def script(request: dict[str, Any]) -> dict[str, Any] | None:
            if request["method"] == "agent.hello":
                times.append(time.monotonic())
                return welcome(0 if len(times) == 1 else 2)
            return accept(request)

        server = ScriptedServer(script)
        site = self.start(server)
        site.wait_until(lambda: len(times) >= 2, "the second session", 15)
        self.assertGreater((times[1] - times[0]) * TIMES, 60)
        self.assertIn("ping", site.output(AGENT))

    def test_no_answer_for_thirty_seconds(self) -> None:
        """F36, §7: a push without an answer ends the session after 30 s, and what it held is
        sent again from where the server is."""
        times: list[float] = []
        hellos = 0

        def script(request: dict[str, Any]) -> dict[str, Any] | None:
            nonlocal hellos
            if request["method"] == "agent.hello":
                hellos += 1
            elif request["method"] == "logs.push":
                times.append(time.monotonic())
                if hellos < 2:
                    return None
            return accept(request)

        server = ScriptedServer(script)
        site = self.start(server)
        site.wait_until(lambda: hellos >= 2 and len(times) >= 2, "the second push", 15)
        self.assertGreater((times[-1] - times[0]) * TIMES, 25)
        first = [push for push in server.requests if push["method"] == "logs.push"]
        self.assertEqual(first[0]["params"], first[-1]["params"])
