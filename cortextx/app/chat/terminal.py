"""A conversation at a terminal, with prompt_toolkit.

The prompt is always there. Whole lines are printed above it; the line that still
streams stands right over it. A question takes the place of the prompt's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.renderer import print_formatted_text
from prompt_toolkit.styles import default_ui_style
from twisted.internet.defer import Deferred

from cortextx.app.chat.acts import Leave, Show, Style
from cortextx.app.chat.room import Room
from cortextx.app.chat.talk import Talk
from cortextx.app.chat.view import safe
from cortextx.app.chat.words import NAMES
from cortextx.app.cli.faults import OK
from cortextx.interaction.master.events import Event

STYLES: dict[Style, str] = {
    "answer": "",
    "user": "ansigreen",
    "note": "ansibrightblack",
    "tool": "ansicyan",
    "ask": "ansiyellow bold",
    "error": "ansired",
}
SHOWN_PARTLY = 1000
"""Characters of an endless line that are shown over the prompt."""


def history_file(environ: dict[str, str] | os._Environ[str]) -> str:
    """Where what was typed is remembered: with the user, not with the slave."""
    base = environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(base, "cortextx", "chat_history")


class Terminal:
    """See the module; it is a View, too."""

    def __init__(self, talk: Talk, history: str, *, colour: bool = True) -> None:
        self._talk = talk
        self._room: Room | None = None
        self._colour = colour
        self._lines: list[tuple[str, str]] = []
        self._line: list[tuple[str, str]] = []
        self._is_due = False
        self._style = default_ui_style()
        self._asked: str | None = None
        self._set_aside: Document | None = None
        self._prompt: PromptSession[str] = PromptSession(
            message=self._message,
            multiline=True,
            prompt_continuation="… ",
            key_bindings=self._keys(),
            history=_history(history, lambda: self._talk.question is None),
            completer=_Commands(),
            complete_while_typing=False,
            enable_open_in_editor=False,
        )

    async def converse(self, room: Room) -> int:
        """Take what is typed until it is all over; answers the exit code."""
        self._room = room
        typing = asyncio.ensure_future(self._typing(room))
        try:
            await room.ended
        finally:
            typing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await Deferred.fromFuture(typing)
            self._rest()
        return OK

    async def _typing(self, room: Room) -> None:
        # One prompt for all of it: between two, the tty would be in its own mode, in
        # which a ^D or ^C that is typed is lost.
        try:
            await self._prompt.prompt_async()
        except EOFError:
            room.leave()
        except Exception as fault:
            room.leave(fault)

    def _entered(self, text: str) -> None:
        """Leave what was typed standing above, and do what it asks for."""
        if text.strip() and self._room is not None:
            name = self._name()
            first, *more = safe(text).split("\n")
            self._lines += [*name, ("", f"{first}\n"), *(("", f"… {line}\n") for line in more)]
            self._room.perform(self._talk.typed(text))
            self._soon()

    # View

    def show(self, show: Show) -> None:
        """See View."""
        style = STYLES[show.style] if self._colour else ""
        *whole, rest = safe(show.text).split("\n")
        for text in whole:
            self._lines += [*self._line, (style, f"{text}\n")]
            self._line = []
        if rest:
            self._line.append((style, rest))
        self._soon()

    def told(self, event: Event) -> None:
        """See View."""

    def changed(self) -> None:
        """See View: a question that comes up sets aside what is being typed."""
        question = self._talk.question
        asked = None if question is None else question.command_id
        self._soon()
        if asked == self._asked:
            return
        buffer = self._prompt.default_buffer
        if self._asked is None and buffer.text:
            self._set_aside = buffer.document
            buffer.reset()
        elif asked is None and self._set_aside is not None:
            buffer.document, self._set_aside = self._set_aside, None
        self._asked = asked

    def _soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_event_loop().call_soon(self._print)

    def _print(self) -> None:
        self._is_due = False
        app = self._prompt.app
        if not self._lines:
            if app.is_running:
                app.invalidate()
            return
        lines, self._lines = self._lines, []
        if app.is_running:
            # Not by run_in_terminal: that leaves raw mode for a moment, in which a ^D
            # or ^C that is typed is lost, or the tty's own.
            app.renderer.erase()
            self._put(lines)
            app.renderer.request_absolute_cursor_position()
            app.invalidate()
        else:
            self._put(lines)

    def _rest(self) -> None:
        """What was not printed yet; the prompt is gone."""
        rest = [*self._lines, *self._line]
        if rest:
            if self._line:
                rest.append(("", "\n"))
            self._lines, self._line = [], []
            self._put(rest)

    def _put(self, lines: list[tuple[str, str]]) -> None:
        app = self._prompt.app
        print_formatted_text(app.output, FormattedText(lines), self._style)
        app.output.flush()

    # The prompt

    def _message(self) -> FormattedText:
        shown: list[tuple[str, str]] = []
        if self._line:
            style, text = self._line[-1][0], "".join(text for _, text in self._line)
            shown.append((style, text if len(text) < SHOWN_PARTLY else f"…{text[-SHOWN_PARTLY:]}"))
            shown.append(("", "\n"))
        return FormattedText([*shown, *self._name()])

    def _name(self) -> list[tuple[str, str]]:
        bold = "bold" if self._colour else ""
        if self._talk.question is not None:
            return [(bold, "answer"), ("", "> ")]
        where = None if self._room is None else self._room.where
        name = "" if where is None else f"{where.agent}/{where.session}"
        return [(bold, safe(name)), ("", "> ")]

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def send(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.document.current_line_before_cursor.endswith("\\") and (
                buffer.document.is_cursor_at_the_end_of_line
            ):
                buffer.delete_before_cursor()
                buffer.insert_text("\n")
            else:
                text = buffer.text
                buffer.reset(append_to_history=True)
                self._entered(text)

        @keys.add("escape", "enter")
        def new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def interrupt(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.reset()
            if self._room is not None:
                self._room.perform(self._talk.interrupted())

        @keys.add("c-d", filter=_is_empty())
        def leave(event: KeyPressEvent) -> None:
            if self._room is not None:
                self._room.perform([Leave()])

        return keys


def _is_empty() -> Any:
    from prompt_toolkit.application import get_app
    from prompt_toolkit.filters import Condition

    return Condition(lambda: not get_app().current_buffer.text)


class _Commands(Completer):
    """Tab completes a /command."""

    def get_completions(self, document: Document, complete_event: Any) -> Iterable[Completion]:
        text = document.text
        if text.startswith("/") and " " not in text:
            for name in NAMES:
                if name.startswith(text):
                    yield Completion(name, start_position=-len(text))


def _history(path: str, is_wanted: Callable[[], bool]) -> History:
    """What was typed before, without answers; in memory where no file can be."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError:
        return _Chosen(InMemoryHistory(), is_wanted)
    return _Chosen(FileHistory(path), is_wanted)


class _Chosen(History):
    """Another history, without what is not wanted in it."""

    def __init__(self, inner: History, is_wanted: Callable[[], bool]) -> None:
        super().__init__()
        self._inner = inner
        self._is_wanted = is_wanted

    def load_history_strings(self) -> Iterable[str]:
        with contextlib.suppress(OSError):
            yield from self._inner.load_history_strings()

    def append_string(self, string: str) -> None:
        if self._is_wanted():
            super().append_string(string)

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            self._inner.store_string(string)
