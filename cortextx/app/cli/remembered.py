"""What `cortextx up` keeps between two calls, in DIR/run/up.json.

Where the server was told to listen, the URLs that the server of this state
directory had, and the one that `up` itself wrote into the agent's enrolment:
only that one follows the server to another port.
"""

from __future__ import annotations

import os
import socket
import tomllib
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from cortextx.app.cli.enroll import identity_files, is_enrolled

LISTEN_VARIABLE = "CORTEXTX_SERVER_LISTEN"


class Remembered(msgspec.Struct, frozen=True):
    """The note; `listen` as it was given, `urls` of the server, `enrolled` by `up`."""

    listen: str | None = None
    urls: tuple[str, ...] = ()
    enrolled: str | None = None


def recall(directory: str) -> Remembered:
    """What was kept; nothing, if nothing legible was."""
    try:
        with open(_path(directory), "rb") as file:
            return msgspec.json.decode(file.read(), type=Remembered)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return Remembered()


def remember(directory: str, note: Remembered) -> None:
    """Keep it, whole or not at all; raises OSError."""
    path = _path(directory)
    made = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(made, "wb") as file:
        file.write(msgspec.json.encode(note) + b"\n")
    os.rename(f"{path}.new", path)


def configured_listen(directory: str, environ: Mapping[str, str]) -> bool:
    """Whether a configuration says where the server listens; then memory has no say."""
    if LISTEN_VARIABLE in environ:
        return True
    try:
        with open(os.path.join(directory, "cortex-server.toml"), "rb") as file:
            table = tomllib.load(file).get("server")
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return False
    return isinstance(table, dict) and "listen" in table


def server_belongs_here(directory: str, note: Remembered) -> bool:
    """Whether this host's agent is meant for the server of this state directory.

    It is while nobody enrolled it, and where its URL is one that the server had.
    A URL of this very machine is the server's only if one ever ran here: it may
    be a tunnel's end. Raises ConfigError for an enrolment that cannot be read.
    """
    enrolment = identity_files(directory).load_enrolment()
    if enrolment is None or not is_enrolled(directory):
        return True
    if enrolment.url == note.enrolled or enrolment.url in note.urls:
        return True
    host = urlsplit(enrolment.url).hostname or ""
    mine = host in ("localhost", "::1", socket.gethostname()) or host.startswith("127.")
    return mine and os.path.exists(os.path.join(directory, "server", "store.db"))


def _path(directory: str) -> str:
    return os.path.join(directory, "run", "up.json")
