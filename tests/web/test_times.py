"""Entries whose time no calendar has in UTC: shown like all others (F15, A44, A46)."""

from __future__ import annotations

from datetime import datetime

from tests.web.case import WebCase

FIRST_DAY = "0001-01-01T00:00:00+14:00"
LAST_DAY = "9999-12-31T23:59:59-12:00"


class Times(WebCase):
    def test_a44_times_beyond_the_calendar_break_nothing(self) -> None:
        """Search, context, histogram and tail go on; the entry bears the nearest moment."""
        self.issue()
        self.push("good one")
        self.push("too late", ts=datetime.fromisoformat(LAST_DAY))
        self.push("too early", ts=datetime.fromisoformat(FIRST_DAY))
        for order in ("newest_first", "oldest_first"):
            found = self.good("/search", {"order": order})["entries"]
            self.assertEqual(len(found), 3)
        times = {entry["message"]: entry["ts"] for entry in found}
        self.assertEqual(times["too late"], "9999-12-31T23:59:59.999999Z")
        self.assertEqual(times["too early"], "0001-01-01T00:00:00.000000Z")
        for entry in found:
            self.good(f"/entries/{entry['id']}/context")
        self.assertEqual(self.good("/histogram")["total"], 3)
