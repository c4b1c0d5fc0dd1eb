"""What `cortextx doctor` looks at of the agent on this machine: enrolment, link, sources."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator

from cortextx.app.cli.client import Row, calling
from cortextx.app.cli.enroll import identity_files, is_enrolled, server_of
from cortextx.app.cli.findings import Finding, note, ok, wrong
from cortextx.app.cli.invocation import Invocation
from cortextx.app.cli.processes import AGENT, Place, running_pid
from cortextx.app.config import load
from cortextx.app.statedir import StateDir
from cortextx.errors import ConfigError
from cortextx.fleet.agent.runnable import check_runnable
from cortextx.fleet.agent.settings import AgentSettings, check

MANY_ENTRIES = 100_000
JOURNALS = ("/var/log/journal", "/run/log/journal")


def agent_configuration(invocation: Invocation) -> Iterator[Finding]:
    """It can be read, and what it names can be read too."""
    directory = StateDir(invocation.state_dir)
    if not _is_here(directory):
        return
    where = directory.config_file(AGENT)
    settings = load(AgentSettings, default_path=where, environ=os.environ)
    check(settings, where)
    yield ok(
        "agent configuration", f"allows {', '.join(settings.agent.allow_sources) or 'nothing'}"
    )
    try:
        check_runnable(settings, where)
    except ConfigError as error:
        hint = "mend it there or here; until then that source does not run"
        yield wrong("agent configuration", str(error), hint)
    for source in settings.sources:
        if source.kind == "file" and source.path is not None:
            yield from _files(source.path)
    if "journald" in settings.agent.allow_sources and not _has_journal():
        yield note(
            "journal", "this machine has no journal that can be read",
            "install systemd's journalctl, or take journald out of allow_sources in [agent]",
        )  # fmt: skip


def enrolment(invocation: Invocation) -> Iterator[Finding]:
    """Who this host is, and on which machine it was enrolled (F14)."""
    directory = StateDir(invocation.state_dir)
    if not _is_here(directory):
        return
    if not is_enrolled(directory.path):
        call = f"`{calling(directory.path)} agent enroll`"
        yield wrong("enrolment", "this host has no token", f"{call}, with an invitation")
        return
    files = identity_files(directory.path)
    identity = files.load()
    bound, here = _text(files.path("machine_id")), _text("/etc/machine-id")
    if bound and here and bound != here:
        yield wrong(
            "enrolment", "this state was copied from another machine",
            "enrol this host anew: `cortextx agent enroll --force`",
        )  # fmt: skip
    else:
        yield ok("enrolment", f"{identity.host_id}, for {server_of(directory.path)}")


def agent_process(invocation: Invocation) -> Iterator[Finding]:
    """It runs, is connected, and loses nothing."""
    directory = StateDir(invocation.state_dir)
    if not _is_here(directory):
        yield note("agent", "none is set up in this state directory")
        return
    if running_pid(Place(directory.path, AGENT)) is None:
        call = f"`{calling(directory.path)} up`"
        yield wrong("agent", "it does not run", f"start it: {call}, or systemctl start {AGENT}")
        return
    with invocation.agent() as client:
        status = client.one("status")
    yield _link(status)
    yield from _buffer(status)
    yield from _configured(status)
    yield from _sources(status)
    for left in status.get("sources_left_out") or []:
        names = dict.fromkeys((left.get("kind"), left.get("name")))
        said = f"{' '.join(map(str, names))} does not run: {left.get('why')}"
        if left.get("origin") == "local":
            hint = "install what it needs, or take it out of [[sources]], and restart the agent"
            yield wrong("sources", said, hint)
        else:
            hint = "allow_sources and [[sources]] of this host say what the server may ask for"
            yield note("sources", said, hint)
    if not status.get("sources"):
        yield note("sources", "none runs: nothing is sent", "see [[sources]] of the configuration")


def _configured(status: Row) -> Iterator[Finding]:
    """Whether what the server configured is in effect (A58)."""
    config = status.get("config") or {}
    why = config.get("reason")
    match config.get("state"):
        case "rolled_back":
            yield wrong(
                "configuration",
                f"what the server sent ({config.get('failed')}) was taken back: {why}."
                f" In effect is {config.get('effective')}",
                "on the server: mend it with `cortextx config set`, or try it again with"
                " `cortextx config push`",
            )  # fmt: skip
        case "refused":
            yield wrong(
                "configuration", f"what the server sent cannot be used: {why}",
                "on the server: mend it with `cortextx config set`",
            )  # fmt: skip
        case "applied" if why:
            yield note("configuration", f"it is in effect, {why}")


def _sources(status: Row) -> Iterator[Finding]:
    """Each source that does not do its work, or not all of it, and what to do about it."""
    for row in status.get("reports") or []:
        details = row.get("details") or {}
        name = " ".join(dict.fromkeys((str(row.get("kind")), str(row.get("name")))))
        why = details.get("trouble") or row.get("why") or "it does not say why"
        hint = _HINTS.get(str(details.get("type") or row.get("kind")), _HINTS["file"])
        if row.get("state") == "failed":
            yield wrong("sources", f"{name} has failed: {why}", hint)
        elif row.get("state") == "waiting" and not details.get("at_rest"):
            yield wrong("sources", f"{name} waits: {why}", hint)
        elif details.get("trouble"):
            yield wrong("sources", f"{name} is in trouble: {why}", hint)
    for row in status.get("sources") or []:
        if row.get("kind") == "file" and row.get("state") == "running" and row.get("why"):
            yield note("sources", f"{row.get('name')}: {row['why']}", _HINTS["file"])
    closed = [row for row in status.get("files") or [] if row.get("why")]
    if closed:
        some = "; ".join(f"{row.get('path')}: {row['why']}" for row in closed[:3])
        more = f"; and {len(closed) - 3} more (`cortextx agent status`)" if closed[3:] else ""
        yield wrong("sources", f"not read: {some}{more}", _HINTS["file"])


def _link(status: Row) -> Finding:
    state = str(status.get("state") or "").lower()
    why = status.get("reason") or status.get("last_error")
    said = f"{state}: {why}" if why else state
    host = status.get("host_id")
    match status.get("auth"), state:
        case _, "revoked" | "fatal_auth":
            return wrong(
                "agent", f"the server refuses it ({said})",
                f"on the server: `cortextx agent issue --host NAME --host-id {host}`; here:"
                " `cortextx agent enroll --force`. What is buffered is kept",
            )  # fmt: skip
        case _, "active" | "draining":
            return ok("agent", f"connected, entry {status.get('acked_seq')} is acknowledged")
        case _:
            hint = "is the server up, and its URL reachable from here? It goes on trying"
            return wrong("agent", f"not connected ({said})", hint)


def _buffer(status: Row) -> Iterator[Finding]:
    if status.get("buffer_fault"):
        hint = "make room on the disk, or mend it, then restart the agent"
        yield wrong("buffer", str(status["buffer_fault"]), hint)
    if status.get("unacknowledged"):
        yield wrong(
            "buffer", f"nobody has looked at {', '.join(status['unacknowledged'])}",
            "`cortextx agent buffer quarantine` shows it; add --acknowledge once that is done",
        )  # fmt: skip
    if status.get("probable_clone"):
        yield wrong(
            "agent", "another agent with this host's identity keeps taking its place",
            "enrol one of the two anew: `cortextx agent enroll --force` there",
        )  # fmt: skip
    for probe in status.get("probes") or []:
        if str(probe.get("why") or "").startswith("disabled"):
            again = f"`cortextx agent probe reset {probe['name']}` once its cause is mended"
            yield note("probes", f"{probe['name']} is {probe['why']}", again)
    for member, what in (
        ("damaged_entries", "were damaged on the disk"),
        ("evicted_entries", "had to go, as the buffer was full"),
        ("set_aside_entries", "were refused by the server and set aside"),
    ):
        if status.get(member):
            yield note("buffer", f"{status[member]} entries {what}", "`cortextx audit` tells which")
    if (status.get("backlog_entries") or 0) > MANY_ENTRIES:
        yield note("buffer", f"{status['backlog_entries']} entries wait to be sent")
    if status.get("sources_paused_by"):
        said = f"sources are paused by {status['sources_paused_by']}"
        yield note("buffer", said, "they go on where they are, once there is room")


def _files(pattern: str) -> Iterator[Finding]:
    """A glob of ours that finds nothing, or what we may not read."""
    found = glob.glob(pattern, recursive=True)
    if not found:
        yield note("sources", f"no file is at {pattern} (yet)")
    closed = [path for path in found if os.path.isfile(path) and not os.access(path, os.R_OK)]
    if closed:
        some = ", ".join(closed[:3]) + (", …" if len(closed) > 3 else "")
        hint = "the agent's user needs the right, by its group (adm) for instance"
        yield wrong("sources", f"{len(closed)} files cannot be read: {some}", hint)


_HINTS = {
    "file": "see that the path is right, and that the agent's user may read what is there,"
    " by its group (adm) for instance",
    "journald": "see that `journalctl -n1` works for the agent's user, by its group"
    " (systemd-journal) for instance",
    "docker": "see that the daemon runs, that `socket` is its socket, and that the agent's user"
    " may use it (group docker)",
    "exec": "run the command by hand as the agent's user; it is started again by itself",
    "stdin": "start the agent in the foreground, with something that writes to it",
    **dict.fromkeys(
        ("syslog-udp", "syslog-tcp", "syslog-tls", "syslog-unix"),
        "see that nobody else listens at `listen` (`ss -lntup`), and that the agent's user may;"
        " ports below 1024 need CAP_NET_BIND_SERVICE",
    ),
}
"""What to do about a source, by its kind or a custom source's type."""


def _has_journal() -> bool:
    return shutil.which("journalctl") is not None and any(map(os.path.isdir, JOURNALS))


def _is_here(directory: StateDir) -> bool:
    """Whether this state directory is an agent's."""
    return os.path.exists(directory.config_file(AGENT)) or os.path.isdir(directory.join("agent"))


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(256).strip()
    except OSError:
        return ""


LOOKS = (agent_configuration, enrolment, agent_process)
