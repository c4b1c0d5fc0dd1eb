"""How `cortextx session` and `chat` name a session, and what its faults say."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from cortextx.app.cli.faults import FAILED, NOT_FOUND, NOT_REACHABLE, USAGE, Fault
from cortextx.app.cli.invocation import Invocation
from cortextx.errors import NameTaken, SessionDamaged, SessionLocked, StoreError, UnknownName
from cortextx.interfaces.sessions import SessionKey

if TYPE_CHECKING:
    from cortextx.stores.session_files import SessionFiles

SESSIONS = "sessions"
"""The state root, below the slave's state directory."""


class Owner(click.ParamType[int]):
    """A user, by name or UID."""

    name = "user"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value.isascii() and value.isdecimal():
            return int(value)
        try:
            return pwd.getpwnam(value).pw_uid
        except KeyError:
            self.fail(f"there is no user {value!r}", param, ctx)


def place_options(command: Callable[..., None]) -> Callable[..., None]:
    """--agent, --owner, --space: which of the sessions of one name is meant."""
    options = (
        click.option("--agent", metavar="NAME", help="Sessions of this agent."),
        click.option("--owner", type=Owner(), metavar="USER", help="Private ones of this user."),
        click.option("--space", metavar="NAME", help="Shared ones of this space."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def root_of(invocation: Invocation, root: str | None = None) -> str:
    """Where the sessions' files lie; raises ConfigError."""
    return root if root is not None else os.path.join(invocation.state_dir, SESSIONS)


def files_at(root: str) -> SessionFiles:
    """The sessions' files below a state root."""
    # Only here: a command that needs none of them starts without.
    from cortextx.stores.session_files import SessionFiles

    return SessionFiles(root)


def matching(
    files: SessionFiles,
    *,
    agent: str | None = None,
    owner: int | None = None,
    space: str | None = None,
    session: str | None = None,
) -> list[SessionKey]:
    """The sessions that are of all that is given."""
    found = files.find(agent=agent, owner=owner, session=session)
    return [key for key in found if space in (None, key.space)]


def one(
    files: SessionFiles,
    name: str,
    *,
    agent: str | None = None,
    owner: int | None = None,
    space: str | None = None,
) -> SessionKey:
    """The one session that `name`, as SESSION or AGENT/SESSION, means; raises Fault."""
    before, slash, behind = name.rpartition("/")
    if slash:
        if agent not in (None, before):
            raise Fault(f"{name} is no session of agent {agent}", None, USAGE)
        agent, name = before, behind
    found = matching(files, agent=agent, owner=owner, space=space, session=name)
    if len(found) == 1:
        return found[0]
    if found:
        raise Fault(
            f"{len(found)} sessions are called {name}:\n" + "\n".join(map(called, found)),
            "say which with --agent, --owner or --space",
            USAGE,
        )
    if not _can_be_read(files.root.path):
        raise Fault(
            f"{files.root.path} cannot be looked into: Permission denied",
            "run this as the user that runs the slave, or as root",
        )
    of = f" of agent {agent}" if agent is not None else ""
    raise Fault(
        f"there is no session {name}{of} in {files.root.path}",
        "`cortextx session list` shows what there is; --state-dir names another place",
        NOT_FOUND,
    )


def _can_be_read(path: str) -> bool:
    try:
        os.listdir(path)
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def called(key: SessionKey) -> str:
    """A session by name and place, as a message says it."""
    if key.scope == "shared":
        return f"{key.agent}/{key.session} (shared, space {key.space})"
    return f"{key.agent}/{key.session} ({key.scope}, of {user(key.owner)})"


def user(uid: int | None) -> str:
    """A user's name, or the UID as text."""
    if uid is None:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Say what the files' errors are, and what to do about each."""
    try:
        yield
    except SessionLocked as error:
        raise Fault(
            str(error),
            "leave the session: the slave lets go of one that is idle (idle_seconds, a minute"
            " unless configured); or stop the slave",
            NOT_REACHABLE,
        ) from None
    except SessionDamaged as error:
        raise Fault(
            f"the log cannot be proved: {error}",
            "`cortextx session repair SESSION` moves what cannot be proved aside",
        ) from None
    except NameTaken as error:
        raise Fault(str(error), "choose another name") from None
    except UnknownName as error:
        raise Fault(str(error), "`cortextx session list` shows what there is", NOT_FOUND) from None
    except StoreError as error:
        raise Fault(str(error)) from None
    except PermissionError as error:
        raise Fault(
            f"{error.filename or 'a file of the session'}: Permission denied",
            "run this as the user that runs the slave, or as root",
        ) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise Fault(f"{where}{error.strerror or error}", None, FAILED) from None


@contextlib.contextmanager
def as_owner_of(path: str) -> Iterator[None]:
    """What root makes below `path` belongs to whom that does: a slave must get at it."""
    try:
        owner = os.stat(path)
    except OSError:
        yield
        return
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    group = os.getegid()
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
