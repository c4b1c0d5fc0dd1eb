"""Where a session's files lie below the state root (session-files, I14) (PURE).

A path is made of names that were checked, below a root without symbolic links, so
that a session has one path and one lock, however its slave was told the root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from blake3 import blake3

from cortextx.core.names import is_name
from cortextx.errors import StoreError, UnknownName
from cortextx.interfaces.sessions import SessionKey

LOCKS = ".locks"
"""Directory of the locks, below the root: all slaves of one root meet there."""
INDEX = "index"
_UID = re.compile(r"0|[1-9][0-9]{0,9}")


def relative_path(key: SessionKey) -> str:
    """The session's directory below the root; raises UnknownName for what has none.

    Temp sessions have no path (I18).
    """
    names = [key.agent, key.session]
    if key.scope == "private" and key.owner is not None and key.owner >= 0:
        place = f"home/{key.owner}"
    elif key.scope == "shared" and key.space is not None:
        names.append(key.space)
        place = f"shared/{key.space}"
    else:
        raise UnknownName(f"a {key.scope} session has no such path")
    if not all(map(is_name, names)):
        raise UnknownName("a session, agent or space has a name that no path can have")
    return f"{place}/agent/{key.agent}/session/{key.session}"


def key_of(path: str) -> SessionKey | None:
    """The session whose directory below the root is `path`, or None."""
    match path.split("/"):
        case ["home", uid, "agent", agent, "session", session] if _UID.fullmatch(uid):
            key = SessionKey(agent=agent, scope="private", session=session, owner=int(uid))
        case ["shared", space, "agent", agent, "session", session] if is_name(space):
            key = SessionKey(agent=agent, scope="shared", session=session, space=space)
        case _:
            return None
    return key if is_name(agent) and is_name(session) else None


@dataclass(frozen=True, slots=True)
class SessionRoot:
    """A state root: `path` is absolute and without symbolic links."""

    path: str

    @classmethod
    def at(cls, path: str) -> SessionRoot:
        """The root that `path` leads to; it need not be there yet."""
        return cls(os.path.realpath(path))

    def directory(self, key: SessionKey) -> str:
        """The session's directory; raises UnknownName if it can have none."""
        return os.path.join(self.path, relative_path(key))

    def checked_directory(self, key: SessionKey) -> str:
        """As `directory`; raises StoreError if a symbolic link is on the way."""
        path = self.directory(key)
        if os.path.realpath(path) != path:
            raise StoreError(f"{path}: there is a symbolic link on the way")
        return path

    def lock(self, key: SessionKey) -> str:
        """The session's lock file: it depends on the session's path only."""
        digest = blake3(relative_path(key).encode()).hexdigest(length=16)
        return os.path.join(self.path, LOCKS, f"{digest}.lock")

    def index(self, key: SessionKey) -> str:
        """The directory of the index that the session stands in."""
        return os.path.join(os.path.dirname(self.directory(key)), INDEX)

    def sessions(self) -> Iterator[SessionKey]:
        """All sessions that have a directory, in no order."""
        for place in ("home", "shared"):
            for owner in _names(os.path.join(self.path, place)):
                agents = f"{place}/{owner}/agent"
                for agent in _names(os.path.join(self.path, agents)):
                    sessions = f"{agents}/{agent}/session"
                    for session in _names(os.path.join(self.path, sessions)):
                        key = key_of(f"{sessions}/{session}")
                        if key is not None:
                            yield key


def _names(path: str) -> list[str]:
    """Names of the directories in `path`, links left out; none if there is no such place."""
    try:
        with os.scandir(path) as found:
            return [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
