"""What a terminal shows over its prompt, and what becomes of half a line that is typed."""

from __future__ import annotations

import asyncio
import os
import stat

from msgspec import Raw
from prompt_toolkit.application import create_app_session
from prompt_toolkit.document import Document
from prompt_toolkit.input import DummyInput
from prompt_toolkit.output import DummyOutput
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.chat.acts import Show
from cortextx.app.chat.talk import Talk
from cortextx.app.chat.terminal import SHOWN_PARTLY, Terminal, history_file
from cortextx.core.exchange import RequestApproval
from cortextx.interaction import data
from cortextx.interaction.master.events import CommandLost, Event

ASKED = Event(data.Command(RequestApproval("rm", Raw(b"{}"))), None, "q", "r1", "c1", is_own=True)


class TerminalTests(SynchronousTestCase):
    def setUp(self) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        self.loop = loop
        self.addCleanup(asyncio.set_event_loop, None)
        self.addCleanup(loop.close)
        session = create_app_session(input=DummyInput(), output=DummyOutput())
        session.__enter__()
        self.addCleanup(session.__exit__, None, None, None)
        self.talk = Talk()
        self.history = os.path.join(os.path.abspath(self.mktemp()), "h")
        self.terminal = Terminal(self.talk, self.history)
        self.buffer = self.terminal._prompt.default_buffer

    def prompt(self) -> str:
        return "".join(text for _, text, *_ in self.terminal._message())

    def told(self, event: Event) -> None:
        self.talk.happened(event)
        self.terminal.changed()

    def test_half_a_line_comes_back_after_the_question(self) -> None:
        self.loop.run_until_complete(self.half_a_line())

    async def half_a_line(self) -> None:
        self.buffer.document = Document("half a thought", 4)
        self.told(ASKED)
        self.assertEqual((self.buffer.text, self.prompt()), ("", "answer> "))
        self.buffer.document = Document("ye")
        self.told(Event(CommandLost("c1")))
        self.assertEqual(self.buffer.document, Document("half a thought", 4))

    def test_the_line_that_streams_stands_over_the_prompt(self) -> None:
        self.terminal.show(Show("one\ntw", "answer"))
        self.terminal.show(Show("o\x1b", "answer"))
        self.assertEqual(self.prompt(), "two\\e\n> ")
        self.terminal.show(Show("\n", "answer"))
        self.assertEqual(self.prompt(), "> ")

    def test_an_endless_line_shows_its_end(self) -> None:
        self.terminal.show(Show("x" * 100_000 + "y", "answer"))
        self.assertLess(len(self.prompt()), SHOWN_PARTLY + 10)
        self.assertIn("xy\n", self.prompt())

    def test_answers_are_not_remembered_and_words_are_for_the_user_alone(self) -> None:
        history = self.buffer.history
        history.append_string("words")
        self.told(ASKED)
        history.append_string("y")
        self.assertEqual(history.get_strings()[-1:], ["words"])
        with open(self.history) as file:
            self.assertNotIn("+y", file.read())
        self.assertEqual(stat.S_IMODE(os.stat(self.history).st_mode), 0o600)

    def test_where_what_was_typed_is_kept(self) -> None:
        self.assertEqual(history_file({"XDG_STATE_HOME": "/s"}), "/s/cortextx/chat_history")

    def test_without_a_place_for_a_history_it_is_in_memory(self) -> None:
        terminal = Terminal(self.talk, "/dev/null/x/h")
        terminal._prompt.default_buffer.history.append_string("words")
