"""What the configuration says of a runtime, below `[agents.NAME]` (PURE; docs/runtimes.md)."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from cortextx.runtimes.chat import Offer

ANYTHING = {"type": "object"}
"""The schema of parameters that nothing is said of."""
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z", re.ASCII)
_OURS = frozenset({"model", "messages", "stream", "tools"})


class ExecSettings(
    Struct, frozen=True, kw_only=True, tag_field="runtime", tag="exec", forbid_unknown_fields=True
):
    """An agent that is a command. Times are seconds.

    `env` is given to the child, as are the slave's own variables that `pass_env`
    names. Output beyond `max_output_bytes`, or a line beyond `max_line_bytes`, ends
    the run. `max_runs` children run at once; further runs wait.
    """

    command: list[str]
    env: dict[str, str] = {}
    pass_env: list[str] = []
    timeout: float = 3600.0
    max_line_bytes: int = 1024 * 1024
    max_output_bytes: int = 64 * 1024 * 1024
    max_runs: int = 64
    history_bytes: int = 256 * 1024

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise ValueError("command to name a program")
        for name in ("timeout", "max_line_bytes", "max_output_bytes", "max_runs"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} above 0")


class ToolSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool: a command, what it is for, and the JSON schema of its parameters.

    `timeout` is in seconds; output beyond `max_output_bytes` ends the tool.
    """

    command: list[str]
    description: str
    parameters: dict[str, Any] = {}
    env: dict[str, str] = {}
    pass_env: list[str] = []
    timeout: float = 60.0
    max_output_bytes: int = 64 * 1024

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise ValueError("command to name a program")
        if self.timeout <= 0 or self.max_output_bytes <= 0:
            raise ValueError("timeout and max_output_bytes above 0")

    def offer(self, name: str) -> Offer:
        """The tool as the model is told of it."""
        return Offer(
            name=name, description=self.description, parameters=self.parameters or ANYTHING
        )


class ModelSettings(
    Struct, frozen=True, kw_only=True, tag_field="runtime", tag="model", forbid_unknown_fields=True
):
    """An agent that is a model. Times are seconds.

    `url` is the API's base, as `http://127.0.0.1:11434/v1`. The key is the slave's
    variable `api_key_env`, or the content of `api_key_file`. `extra` is added to every
    request, as `temperature`. `max_rounds` bounds the answers of a run.
    """

    url: str
    model: str
    api_key_env: str | None = None
    api_key_file: str | None = None
    system: str | None = None
    extra: dict[str, Any] = {}
    tools: dict[str, ToolSettings] = {}
    timeout: float = 1800.0
    connect_timeout: float = 10.0
    first_timeout: float = 120.0
    idle_timeout: float = 60.0
    retries: int = 3
    max_rounds: int = 16
    max_answer_bytes: int = 1024 * 1024
    max_runs: int = 64
    history_bytes: int = 256 * 1024

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError("url to begin with http:// or https://")
        for name in ("timeout", "connect_timeout", "first_timeout", "idle_timeout"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} above 0")
        for name in ("max_rounds", "max_answer_bytes", "max_runs"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} above 0")
        if not _OURS.isdisjoint(self.extra):
            raise ValueError(f"extra without {', '.join(sorted(_OURS))}")
        for name in self.tools:
            if _TOOL_NAME.match(name) is None:
                raise ValueError("tools' names of 1 to 64 letters, digits, _ and -")
