"""Becomes a session's command: its user, its directory, nothing inherited (S1).

`runtimes.processes` starts this file as a script with an isolated interpreter, so
that the slave need not fork, and so that the directory is entered as the user that
the command runs as. It imports little, since every run waits for it. The arguments:

    UID (or - to stay) CWD ROOT COMMAND …

What goes wrong before the command takes over is said on descriptor 3, in words; the
command itself does not have it, so its end without a word says that the command runs.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import sys

STATUS_FD = 3
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Become the command, or say why not and end with code 127."""
    uid, cwd, root, *command = arguments
    os.set_inheritable(STATUS_FD, False)
    step = "session"
    try:
        os.setsid()
        _plain_signals()
        os.closerange(STATUS_FD + 1, os.sysconf("SC_OPEN_MAX"))
        os.umask(0o022)
        step = "user"
        _become(None if uid == "-" else int(uid))
        step = "cwd"
        _enter(cwd, root)
        step = "parent"
        _die_with_parent()
        step = "command"
        os.execvp(command[0], command)  # noqa: S606 - a list, and no shell
    except (OSError, LookupError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        os.write(STATUS_FD, f"{step}: {why}".encode(errors="replace"))
    os._exit(127)


def _plain_signals() -> None:
    """Undo what Python sets for itself; the mask and the rest are the spawner's to reset."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _become(uid: int | None) -> None:
    """Take on all of a user's identity, and only that (S1)."""
    try:
        user = pwd.getpwuid(os.geteuid() if uid is None else uid)
    except KeyError:
        if uid is None:
            return
        raise LookupError(f"no user has the uid {uid}") from None
    if uid is not None:
        os.setgroups(os.getgrouplist(user.pw_name, user.pw_gid))
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(uid, uid, uid)
    for name, value in (("HOME", user.pw_dir), ("USER", user.pw_name), ("LOGNAME", user.pw_name)):
        os.environ.setdefault(name, value)


def _enter(cwd: str, root: str) -> None:
    """Go to the directory, with the user's rights, if it really lies in the root (I27)."""
    os.chdir(cwd)
    real, top = os.getcwd(), os.path.realpath(root)
    if os.path.commonpath((real, top)) != top:
        raise LookupError("it is outside the workspace")
    os.environ["PWD"] = real


def _die_with_parent() -> None:
    """Have the kernel kill the command when the slave dies: nobody would read it then."""
    parent = os.getppid()
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        raise LookupError("the slave is gone")


if __name__ == "__main__":
    main(sys.argv[1:])
