"""What a configuration may say of a runtime."""

from __future__ import annotations

from typing import Any

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from cortextx.runtimes.settings import ExecSettings, ModelSettings, ToolSettings

MODEL = {"runtime": "model", "url": "http://127.0.0.1:1/v1", "model": "m"}
TOOL = {"command": ["t"], "description": "d"}


class SettingsTests(SynchronousTestCase):
    def test_the_runtime_names_the_settings(self) -> None:
        kind: Any = ExecSettings | ModelSettings
        values = {"runtime": "exec", "command": ["a"]}
        self.assertEqual(msgspec.convert(values, kind), ExecSettings(command=["a"]))
        made = msgspec.convert(MODEL | {"tools": {"t-1": TOOL}}, kind)
        self.assertEqual(made.tools["t-1"].offer("t-1").parameters, {"type": "object"})

    def test_what_cannot_work_is_refused(self) -> None:
        for kind, values in [
            (ExecSettings, {"runtime": "exec", "command": []}),
            (ExecSettings, {"runtime": "exec", "command": ["a"], "timeout": 0}),
            (ExecSettings, {"runtime": "exec", "command": ["a"], "max_runs": 0}),
            (ExecSettings, {"runtime": "exec", "command": ["a"], "timout": 3}),
            (ToolSettings, TOOL | {"command": [""]}),
            (ToolSettings, TOOL | {"aprove": True}),
            (ToolSettings, TOOL | {"timeout": -1}),
            (ModelSettings, MODEL | {"url": "127.0.0.1"}),
            (ModelSettings, MODEL | {"extra": {"stream": False}}),
            (ModelSettings, MODEL | {"tools": {"a b": TOOL}}),
            (ModelSettings, MODEL | {"max_rounds": 0}),
            (ModelSettings, MODEL | {"idle_timeout": 0}),
        ]:
            with self.subTest(str(values)):
                self.assertRaises(msgspec.ValidationError, msgspec.convert, values, kind)
