"""Which probes are off because their process died: kept over restarts, reset by hand (A61)."""

from __future__ import annotations

import contextlib
import os
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from cortextx.errors import ConfigError

MAX_BYTES = 65_536


class Death(Struct, frozen=True, kw_only=True):
    """When a probe's process died (RFC 3339), and of what."""

    at: Annotated[str, Meta(max_length=64)]
    why: Annotated[str, Meta(max_length=512)]


class _File(Struct, frozen=True):
    disabled: dict[str, Death] = {}


class Disabled:
    """The file of them. What cannot be read counts as empty, and is said by `note`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.note: str | None = None
        self._deaths = self._load()

    @property
    def deaths(self) -> dict[str, Death]:
        """By probe."""
        return dict(self._deaths)

    def died(self, name: str, death: Death) -> None:
        """Disable a probe; raises OSError if that cannot be kept (it holds until the end
        of the process then)."""
        self._deaths[name] = death
        self._store()

    def reset(self, name: str) -> None:
        """Enable a probe again; raises ConfigError if it is not disabled, or OSError."""
        if name not in self._deaths:
            now = ", ".join(self._deaths) or "none"
            raise ConfigError("probes", name, f"one of the disabled probes ({now})")
        del self._deaths[name]
        self._store()

    def _load(self) -> dict[str, Death]:
        try:
            with open(self._path, "rb") as file:
                return msgspec.json.decode(file.read(MAX_BYTES), type=_File).disabled
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError, UnicodeError) as error:
            self.note = f"{self._path} cannot be read, so no probe counts as disabled: {error}"
            return {}

    def _store(self) -> None:
        beside = f"{self._path}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(beside, flags, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.encode(_File(self._deaths)))
                file.flush()
                os.fsync(file.fileno())
            os.rename(beside, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise
        folder = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
