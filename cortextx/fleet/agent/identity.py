"""What an agent keeps of its enrolment below DIR/agent, and the machine it is bound to.

`token` and `host_id` are text, `enrolment.json` says where the server is,
`machine_id` is the machine on which the host was enrolled (F14). All are 0600
and replaced whole: written beside, synced, renamed, the directory synced (A22).
`token.previous` is the token that `token` replaced: a server that was restored
from a backup knows that one only (A56). `*.spare` keep room for both on a full disk.
No error and no repr holds a token (F23). Every call blocks on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from dataclasses import dataclass, field

import msgspec

from cortextx.errors import ConfigError
from cortextx.fleet.invitation import check_token, check_url

ENROL = "enrol this host with `cortextx agent enroll`"
MACHINE_ID = "/etc/machine-id"
MAX_BYTES = 65_536
"""Bytes that any of these files may have."""
TOKEN, PREVIOUS, ASIDE = "token", "token.previous", "token.aside"
SPARE_BYTES = 4096
"""Room kept for each token: one block of a usual file system."""
_SPARED = (TOKEN, PREVIOUS)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Enrolment(msgspec.Struct, frozen=True):
    """`enrolment.json`: the server's URL, and the pin of its own CA if it has one (F40)."""

    url: str
    ca_pin: str | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this agent is; `enrolment` is None where only token and host id were put there.

    `previous` is the token that was replaced by this one, if it is known.
    """

    host_id: str
    token: str = field(repr=False)
    enrolment: Enrolment | None = None
    previous: str | None = field(default=None, repr=False)


class IdentityFiles:
    """The files in `directory` (DIR/agent); making one touches no disk.

    `machine_id_path` is where this machine says who it is.
    """

    def __init__(self, directory: str, machine_id_path: str = MACHINE_ID) -> None:
        self.directory = directory
        self._machine_id_path = machine_id_path

    def path(self, name: str) -> str:
        """The path of one of the files."""
        return os.path.join(self.directory, name)

    def load(self) -> Identity:
        """Read who this agent is; raises ConfigError with the file and what to do."""
        token = self.load_token()
        host_id = self._required("host_id")
        try:
            host_id = str(uuid.UUID(host_id))
        except ValueError:
            raise ConfigError(self.path("host_id"), "host_id", f"a UUID; {ENROL}") from None
        return Identity(host_id, token, self.load_enrolment(), self.load_previous())

    def load_token(self) -> str:
        """The token as it is stored now; raises ConfigError."""
        return check_token(self._required(TOKEN), self.path(TOKEN))

    def load_previous(self) -> str | None:
        """The token that was replaced, if a good one is there: it is not missed otherwise."""
        aside = self._token_in(ASIDE)
        if aside is not None and aside != self._token_in(TOKEN):
            # A crash fell into a swap, between its two renames.
            return aside
        return self._token_in(PREVIOUS)

    def load_enrolment(self) -> Enrolment | None:
        """Where the server is, if that is stored; raises ConfigError."""
        text = self._read("enrolment.json")
        if text is None:
            return None
        try:
            found = msgspec.json.decode(text, type=Enrolment)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            expected = f'an object with a "url"; {ENROL}'
            raise ConfigError(self.path("enrolment.json"), "enrolment", expected) from None
        check_url(found.url, self.path("enrolment.json"))
        return found

    def bind(self) -> None:
        """See that this is the machine that was enrolled (F14); raises ConfigError.

        Without a machine id there is nothing to compare. A state without one is
        bound to this machine now.
        """
        here = self._machine_id()
        if here is None:
            return
        bound = self._read("machine_id")
        if bound is None:
            self._write("machine_id", here)
        elif bound != here:
            expected = (
                "the machine that was enrolled: this state was copied from another one, and two"
                f" agents with one identity lose logs; {ENROL} --force"
            )
            raise ConfigError(self.path("machine_id"), "machine id", expected)

    def enrol(
        self, url: str, token: str, host_id: str | None = None, ca_pin: str | None = None
    ) -> str:
        """Store an enrolment in place of any other; returns the host id, made if not given.

        The token comes last: an enrolment without one is not complete. No token of
        an earlier one is kept, but room for the next. Raises ConfigError, also where
        the disk refuses.
        """
        check_url(url, "enrolment")
        check_token(token, "enrolment")
        try:
            chosen = str(uuid.uuid4() if host_id is None else uuid.UUID(host_id))
        except ValueError:
            raise ConfigError("enrolment", "host_id", "a UUID") from None
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            for name in (TOKEN, ASIDE, PREVIOUS):
                self._remove(name)
            self.reserve()
            self._write("host_id", chosen)
            self._write("enrolment.json", msgspec.json.encode(Enrolment(url, ca_pin)).decode())
            here = self._machine_id()
            if here is None:
                self._remove("machine_id")
            else:
                self._write("machine_id", here)
            self._write(TOKEN, token)
        except OSError as error:
            expected = f"a directory that can be written ({error.strerror})"
            raise ConfigError(self.directory, "enrolment", expected) from None
        return chosen

    def move(self, url: str) -> None:
        """Store where the same server is now, and nothing else; raises ConfigError, OSError."""
        check_url(url, "enrolment")
        found = self.load_enrolment()
        ca_pin = None if found is None else found.ca_pin
        self._write("enrolment.json", msgspec.json.encode(Enrolment(url, ca_pin)).decode())

    def store_token(self, token: str, replaced: str | None = None) -> None:
        """Replace the token, durably and whole (§3.5), and keep `replaced` as the previous one.

        Without `replaced` that is the token which is there. What is replaced is
        durable in its place before the token changes; where the two change places,
        there is no moment at which either is not on the disk. Raises OSError; a
        full disk is none while the spares are there (see `reserve`).
        """
        if replaced is None:
            replaced = self._token_in(TOKEN)
        previous = self.load_previous()
        if self._token_in(ASIDE) == previous and previous is not None:
            self._rename(ASIDE, PREVIOUS)
        if replaced is None or replaced == token:
            self._write(TOKEN, token)
        elif token == previous:
            self._write(ASIDE, replaced)
            self._write(TOKEN, token)
            self._rename(ASIDE, PREVIOUS)
        else:
            if replaced != previous:
                self._write(PREVIOUS, replaced)
            self._write(TOKEN, token)
        self._remove(ASIDE)

    def delete_token(self) -> None:
        """Remove the token and the one before, durably (§3.7); raises OSError if it cannot."""
        for name in (TOKEN, ASIDE, PREVIOUS):
            self._remove(name)

    @property
    def never_rotated(self) -> bool:
        """Whether the token may be a one-time token: this agent has replaced none by it."""
        return self.load_previous() is None

    def reserve(self) -> None:
        """Have room on the disk for a new token and the one before; raises OSError.

        It is done before a hello, as the answer may hold a token that nobody gives twice.
        """
        for name in _SPARED:
            path = self.path(f"{name}.spare")
            with contextlib.suppress(FileNotFoundError):
                if os.lstat(path).st_size == SPARE_BYTES:
                    continue
                os.unlink(path)
            try:
                self._create(path, bytes(SPARE_BYTES))
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                raise
            self._sync_directory()

    def store_config(self, config: bytes) -> None:
        """Keep the server's configuration for the next start; raises OSError."""
        self._write("config.json", config.decode())

    def load_config(self) -> bytes | None:
        """The configuration that was kept, if any; it is not checked here."""
        with contextlib.suppress(ConfigError):
            text = self._read("config.json")
            return None if text is None else text.encode()
        return None

    def _machine_id(self) -> str | None:
        try:
            with open(self._machine_id_path, encoding="ascii") as file:
                return file.read(256).strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    def _required(self, name: str) -> str:
        text = self._read(name)
        if not text:
            raise ConfigError(self.path(name), name, f"a file with it; {ENROL}")
        return text

    def _read(self, name: str) -> str | None:
        """The text of a file without blanks around it; None if it is not there."""
        path = self.path(name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(path, name, f"a readable file ({error.strerror})") from None
        with open(descriptor, "rb") as file:
            if os.fstat(descriptor).st_mode & 0o077:
                with contextlib.suppress(OSError):
                    os.fchmod(descriptor, 0o600)
            try:
                return file.read(MAX_BYTES).decode().strip()
            except (OSError, UnicodeDecodeError):
                raise ConfigError(path, name, f"a file with text; {ENROL}") from None

    def _token_in(self, name: str) -> str | None:
        """The token in a file; None if there is none that could be one."""
        with contextlib.suppress(ConfigError):
            text = self._read(name)
            return None if text is None else check_token(text, self.path(name))
        return None

    def _write(self, name: str, text: str) -> None:
        """Replace a file, whole; on a full disk the spare for it becomes the new one."""
        beside, data = self.path(f"{name}.new"), text.encode() + b"\n"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
            self._create(beside, data)
        except OSError as fault:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            if fault.errno not in _FULL or name not in (*_SPARED, ASIDE):
                raise
            spare = self.path(f"{TOKEN if name == TOKEN else PREVIOUS}.spare")
            if not os.path.exists(spare):
                raise
            beside = self._written_to_spare(spare, beside, data)
        os.rename(beside, self.path(name))
        self._sync_directory()

    def _written_to_spare(self, spare: str, beside: str, data: bytes) -> str:
        """Write where the disk has room already; answers the path of the file."""
        try:
            with open(os.open(spare, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "wb") as file:
                file.write(data)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
        except OSError as fault:
            if fault.errno not in _FULL:
                raise
            # A file system that writes nothing in place: what the spare had must do.
            os.unlink(spare)
            self._create(beside, data)
            return beside
        return spare

    def _create(self, path: str, data: bytes) -> None:
        """Make a file of mode 0600 with this content, durably but for its name."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _rename(self, old: str, new: str) -> None:
        os.rename(self.path(old), self.path(new))
        self._sync_directory()

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(name))
            self._sync_directory()

    def _sync_directory(self) -> None:
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
