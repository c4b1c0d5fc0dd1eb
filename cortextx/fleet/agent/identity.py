"""What an agent keeps of its enrolment below DIR/agent, and the machine it is bound to.

`token` and `host_id` are text, `enrolment.json` says where the server is,
`machine_id` is the machine on which the host was enrolled (F14). All are 0600
and replaced whole: written beside, synced, renamed, the directory synced (A22).
No error and no repr holds the token (F23). Every call blocks on the disk.
"""

from __future__ import annotations

import contextlib
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


class Enrolment(msgspec.Struct, frozen=True):
    """`enrolment.json`: the server's URL, and the pin of its own CA if it has one (F40)."""

    url: str
    ca_pin: str | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this agent is; `enrolment` is None where only token and host id were put there."""

    host_id: str
    token: str = field(repr=False)
    enrolment: Enrolment | None = None


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
        return Identity(host_id, token, self.load_enrolment())

    def load_token(self) -> str:
        """The token as it is stored now; raises ConfigError."""
        return check_token(self._required("token"), self.path("token"))

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

        The token comes last: an enrolment without one is not complete. Raises
        ConfigError, also where the disk refuses.
        """
        check_url(url, "enrolment")
        check_token(token, "enrolment")
        try:
            chosen = str(uuid.uuid4() if host_id is None else uuid.UUID(host_id))
        except ValueError:
            raise ConfigError("enrolment", "host_id", "a UUID") from None
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            self._remove("token")
            self._write("host_id", chosen)
            self._write("enrolment.json", msgspec.json.encode(Enrolment(url, ca_pin)).decode())
            here = self._machine_id()
            if here is None:
                self._remove("machine_id")
            else:
                self._write("machine_id", here)
            self._write("token", token)
        except OSError as error:
            expected = f"a directory that can be written ({error.strerror})"
            raise ConfigError(self.directory, "enrolment", expected) from None
        return chosen

    def store_token(self, token: str) -> None:
        """Replace the token, durably and whole (§3.5); raises OSError."""
        self._write("token", token)

    def delete_token(self) -> None:
        """Remove the token, durably (§3.7); raises OSError. There may be none."""
        self._remove("token")

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

    def _write(self, name: str, text: str) -> None:
        path, beside = self.path(name), self.path(f"{name}.new")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(beside, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.rename(beside, path)
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
