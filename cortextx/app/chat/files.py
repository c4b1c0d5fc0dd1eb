"""The sessions' files as a conversation needs them: a list, and an export."""

from __future__ import annotations

import os

from cortextx.app.chat.acts import Export
from cortextx.app.chat.room import Where
from cortextx.app.cli.faults import Fault
from cortextx.app.cli.session import write_export
from cortextx.app.cli.session_names import matching, told
from cortextx.interfaces.sessions import SessionKey
from cortextx.stores.session_files import SessionFiles, Summary

SHOWN = 30


class LocalFiles:
    """See room.Files: the files below `root`, where the slave keeps them."""

    def __init__(self, root: str) -> None:
        self._files = SessionFiles(root)

    def listed(self, where: Where) -> str:
        """The agent's sessions that are this user's, or the space's; the newest first."""
        owner = os.geteuid() if where.space is None else None
        with told():
            if os.path.isdir(self._files.root.path):
                os.listdir(self._files.root.path)
            wanted = set(matching(self._files, owner=owner, space=where.space))
            found = [each for each in self._files.list() if each.key in wanted]
        lines = [_line(each, where) for each in found[:SHOWN]]
        if len(found) > SHOWN:
            lines.append(f"… and {len(found) - SHOWN} more: `cortextx session list`")
        return "\n".join(lines) or "no session has been written to yet"

    def export(self, where: Where, export: Export) -> str:
        """Write the session to a new file."""
        if where.temp:
            raise Fault("a temporary session has no files")
        key = SessionKey(
            agent=where.agent,
            scope="private" if where.space is None else "shared",
            session=where.session,
            owner=os.geteuid() if where.space is None else None,
            space=where.space,
        )
        path = os.path.expanduser(export.path)
        with told():
            write_export(self._files.export(key, export.form), path)
        return f"written to {path}"


def _line(summary: Summary, where: Where) -> str:
    key, saved = summary.key, summary.told
    here = "*" if (key.agent, key.session) == (where.agent, where.session) else " "
    return (
        f"{here} {key.agent}/{key.session}  {saved.state}, {saved.messages} messages"
        f"  {saved.updated_at or ''}"
    )
