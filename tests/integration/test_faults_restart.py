"""A fleet and a restarting server: all come back soon, and not all at once (A52)."""

from __future__ import annotations

import shutil
import tempfile

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.processes import ServerProcess
from tests.integration.reconnects import LinkFleet, Return, issue_all, restarted

AGENTS = 200


class Restarts(SynchronousTestCase):
    def restart(self, kill: bool) -> Return:
        state = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, state, ignore_errors=True)
        server = ServerProcess(state)
        self.addCleanup(server.end)
        fleet = LinkFleet(server.started().address, issue_all(server, AGENTS))
        self.addCleanup(fleet.close)
        fleet.all_active(30)
        fresh, back = restarted(server, fleet, 60, kill=kill)
        self.addCleanup(fresh.end)
        with fresh.admin() as admin:
            rows, _ = admin.call("agent.list")
        self.assertEqual([row["connected"] for row in rows], [True] * AGENTS)
        return back

    def test_200_agents_come_back_spread_out(self) -> None:
        """A52, §6: after a kill -9 every agent is back within a minute, and they came at less
        than three times the mean rate at the most."""
        self.assertLess(self.restart(kill=True).unevenness, 3)

    def test_a_stop_in_order_spreads_them_too(self) -> None:
        """A52: after a SIGTERM, which closes all connections in one moment, likewise."""
        self.assertLess(self.restart(kill=False).unevenness, 3)
