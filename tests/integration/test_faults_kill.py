"""kill -9 of a server under load, over and over: acked is stored, once, without a hole (F10, F11).

CORTEXTX_KILL_ROUNDS asks for more rounds.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.faults import PushingHost
from tests.integration.processes import ServerProcess

ROUNDS = int(os.environ.get("CORTEXTX_KILL_ROUNDS", "6"))
SEED = int(os.environ.get("CORTEXTX_KILL_SEED", "0")) or random.randrange(1, 2**32)
HOSTS = [f"2b9a0b3a-7e3c-4d2a-9c0e-{number:012d}" for number in range(6)]


class KilledUnderLoad(SynchronousTestCase):
    def test_nothing_acked_is_lost_and_nothing_doubled(self) -> None:
        """Six hosts push through kill after kill of the server, each going on from the
        accepted_seq of its new hello, which is never below what was acked. In the end every
        entry that was made is stored once, in its order, and no gap is recorded."""
        chance = random.Random(SEED)
        state = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, state, ignore_errors=True)
        server = ServerProcess(state)
        self.addCleanup(server.end)
        host, port = server.started().address
        hosts = []
        for host_id in HOSTS:
            connection, token = server.enrolled(host_id)
            connection.socket.close()
            hosts.append(PushingHost((host, port), host_id, token))
            self.addCleanup(hosts[-1].join, 10)
            self.addCleanup(hosts[-1].give_up)
        for one in hosts:
            one.start()
        for _ in range(ROUNDS):
            time.sleep(chance.uniform(0.05, 0.8))
            server.kill()
            server = ServerProcess(state, listen=f"tcp:{port}:interface={host}")
            self.addCleanup(server.end)
            server.started()
        time.sleep(0.5)
        for one in hosts:
            one.finish()
        for one in hosts:
            one.join(15)
            said = f"seed {SEED}, {one.acked} of {one.made} acked"
            self.assertFalse(one.is_alive(), said)
            self.assertIsNone(one.fault, said)
            self.assertEqual(one.accepted, sorted(one.accepted), said)
            self.assertGreater(one.made, 100, said)
        with server.admin() as admin:
            stored: dict[str, list[tuple[int, str]]] = {host_id: [] for host_id in HOSTS}
            cursor = 0
            while True:
                rows, end = admin.call("search.tail", after=cursor, limit=1000)
                for row in rows:
                    stored[row["host_id"]].append((row["seq"], row["message"]))
                before, cursor = cursor, end["cursor"] or 0
                if cursor <= before:
                    break
            rows, _ = admin.call("agent.list")
        for one, host_id in zip(hosts, HOSTS, strict=True):
            made = [(seq, f"line {seq}") for seq in range(1, one.made + 1)]
            self.assertEqual(stored[host_id], made, f"seed {SEED}")
        self.assertEqual({(row["gap_count"], row["lost_entries"]) for row in rows}, {(0, 0)})
        self.assertEqual(
            sorted(row["accepted_seq"] for row in rows), sorted(one.made for one in hosts)
        )
