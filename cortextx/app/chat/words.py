"""The /commands of a conversation (PURE)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from cortextx.app.chat.acts import Act, AskStatus, AttachTo, Export, Form, Leave, ListSessions
from cortextx.core.names import is_name

HELP = """\
/sessions             the sessions that there are
/attach [AGENT/]NAME  go to another session
/status               how the session is doing
/cancel               cancel the run that goes on
/resume [SEQ]         show again what came after event SEQ, or everything
/export [FORM] FILE   write the session to FILE: events, messages or markdown
/help                 this
/quit                 leave; what runs goes on
Enter sends; Alt-Enter, or a \\ at the line's end, begins a new line. //text sends /text.
^C cancels the run, and a second one leaves; ^D leaves.
"""

NAMES = ("/attach", "/cancel", "/export", "/help", "/quit", "/resume", "/sessions", "/status")


@dataclass(frozen=True, slots=True)
class Unknown:
    """What was typed is no command."""

    why: str


def parse(text: str) -> Act | Unknown | Literal["help", "cancel"]:
    """What a line that begins with / asks for."""
    name, *words = text.split()
    match name, words:
        case "/help" | "/?", []:
            return "help"
        case "/cancel", []:
            return "cancel"
        case "/quit" | "/exit", []:
            return Leave()
        case "/status", []:
            return AskStatus()
        case "/sessions", []:
            return ListSessions()
        case "/resume", []:
            return AttachTo(None, None, 0)
        case "/resume", [seq] if seq.isascii() and seq.isdecimal() and len(seq) < 16:
            return AttachTo(None, None, int(seq))
        case "/resume", _:
            return Unknown("/resume takes the number of an event, as in /resume 41")
        case "/attach", [where]:
            return _attach(where)
        case "/attach", _:
            return Unknown("/attach takes a session's name, as in /attach notes")
        case "/export", [path]:
            return Export("markdown" if path.endswith(".md") else "events", path)
        case "/export", [("events" | "messages" | "markdown") as form, path]:
            return Export(form, path)
        case "/export", _:
            forms = ", ".join(get_args(Form))
            return Unknown(f"/export takes a file, and before it one of {forms}")
    if name in NAMES:
        return Unknown(f"{name} takes nothing more")
    return Unknown(f"there is no {name}; /help shows what there is, and //… sends it as it is")


def _attach(where: str) -> Act | Unknown:
    agent, slash, session = where.rpartition("/")
    if not is_name(session) or (slash and not is_name(agent)):
        return Unknown(f"no session is called {where}: letters, digits, '.', '_' and '-'")
    return AttachTo(agent or None, session)
