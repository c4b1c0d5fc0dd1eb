"""What a slave's refusal tells a person to do."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.chat.room import Where, refused
from cortextx.errors import SessionRefused


class RefusedTests(SynchronousTestCase):
    def test_a_log_without_room_is_not_called_damaged(self) -> None:
        """I13: a full disk wants room, a damaged log wants repair."""
        where = Where(agent="echo", session="notes")
        full = refused(where, SessionRefused("session_io", "no room", True))
        damaged = refused(where, SessionRefused("session_io", "torn", False))
        self.assertIn("make room", str(full.hint))
        self.assertNotIn("repair", str(full.hint))
        self.assertIn("cortextx session repair", str(damaged.hint))
