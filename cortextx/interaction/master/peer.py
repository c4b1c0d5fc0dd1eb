"""Who listens at the other end of a Unix socket, and whether that is the slave (I15)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection
from typing import Any

ROOT = 0


def peer_uid(transport: Any) -> int:
    """The UID of whoever listens there, told by the kernel (SO_PEERCRED)."""
    size = struct.calcsize("3i")
    raw = transport.getHandle().getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", raw)[1])


def expected_uids(given: Collection[int] | None) -> frozenset[int]:
    """Whose slave may be talked to: without a word our own and root's."""
    return frozenset((os.geteuid(), ROOT) if given is None else given)
