"""What waits for the application."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from cortextx.interaction.data import Delta, Message
from cortextx.interaction.master.events import Event
from cortextx.interaction.master.inbox import Inbox


def delta(text: str, run: str = "r") -> Event:
    """A piece of text."""
    return Event(Delta(text), run_id=run)


class InboxTests(SynchronousTestCase):
    def test_text_that_streams_is_merged_while_it_waits(self) -> None:
        """A slow application draws less often, not less."""
        inbox = Inbox()
        for text in "abc":
            inbox.put(delta(text), 100)
        inbox.put(delta("d", "other"), 100)
        self.assertEqual(
            [e.content for e in (inbox.take(), inbox.take()) if e], [Delta("abc"), Delta("d")]
        )
        self.assertEqual((len(inbox), inbox.held), (0, 0))

    def test_merging_keeps_the_order(self) -> None:
        """Text behind a fact stays behind it."""
        inbox = Inbox()
        inbox.put(delta("a"), 1)
        inbox.put(Event(Message("user", "x"), 1), 1)
        inbox.put(delta("b"), 1)
        got = [event.content for event in iter(inbox.take, None)]
        self.assertEqual(got, [Delta("a"), Message("user", "x"), Delta("b")])

    def test_facts_are_kept_where_text_that_streams_is_dropped(self) -> None:
        """I12, B32: deltas are the first to go, and the only ones."""
        inbox = Inbox(max_bytes=2000)
        for seq in range(4):
            inbox.put(Event(Message("user", "x"), seq), 300)
        inbox.put(delta("late"), 10)
        self.assertEqual(len(inbox), 4)
        self.assertTrue(inbox.is_full)
