"""What `twistd` lists: the services of this package, named by string only.

Twisted reads this file each time it looks for plugins, so it imports nothing
of ours. Neither this directory nor the one above may hold an `__init__.py`.
"""

from __future__ import annotations

from twisted.application.service import ServiceMaker

cortex_server = ServiceMaker(
    "CortexTX fleet server",
    "cortextx.app.server_tap",
    "Takes the logs of enrolled hosts, keeps them and makes them searchable",
    "cortex-server",
)

cortex_agent = ServiceMaker(
    "CortexTX host agent",
    "cortextx.app.agent_tap",
    "Ships this host's logs to a cortex-server",
    "cortex-agent",
)

cortex_slave = ServiceMaker(
    "CortexTX session slave",
    "cortextx.app.slave_tap",
    "Keeps the sessions of AI agents and serves them on a Unix socket",
    "cortex-slave",
)
