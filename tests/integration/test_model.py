"""The `model` runtime against llmock, an OpenAI-compatible server that breaks on demand.

llmock judges its clients too: each test ends with its verdict on ours.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import treq
from twisted.internet import reactor
from twisted.trial.unittest import TestCase
from twisted.web.client import Agent, HTTPConnectionPool

from cortextx.core.exchange import Accepted, Command, Delta, Message, Rejected, RequestApproval
from cortextx.interfaces.sessions import RunOutcome
from cortextx.runtimes.model import CANCELLED, ModelRuntime
from cortextx.runtimes.settings import ModelSettings, ToolSettings
from tests.integration.children import after, alive
from tests.integration.peers import need
from tests.runtimes.fakes import RecordingSink, run_request

UNTOLD = ("gave_up", "truncated_stream_accepted", "malformed_chunk_ignored")
"""llmock takes a client that does not ask again for one that saw no fault."""
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class ModelCase(TestCase):
    timeout = 60

    async def setUp(self) -> None:
        program = need("llmock")
        self.root = Path(tempfile.mkdtemp(prefix="cx", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.base = f"http://127.0.0.1:{port}"
        self.start(program, "serve", "--port", str(port), "--log-level", "warning")
        self.pool = HTTPConnectionPool(reactor, persistent=False)
        self.client = treq.client.HTTPClient(Agent(reactor, pool=self.pool))
        for _attempt in range(600):
            try:
                await self.call("GET", "/health")
                return
            except Exception:
                await after(0.05)
        self.fail("llmock does not come up")

    def start(self, *command: str) -> None:
        with (self.root / "llmock.out").open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.root
            )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        response = await self.client.request(method, self.base + path, json=body)
        content = await treq.content(response)
        self.assertLess(response.code, 300, content)
        return json.loads(content)

    async def script(self, *behaviors: Any) -> None:
        await self.call("POST", "/_llmock/scenario", {"behaviors": behaviors})

    async def requests(self) -> list[Any]:
        answer = await self.call("GET", "/_llmock/requests")
        found: list[Any] = answer["requests"] if isinstance(answer, dict) else answer
        return [request for request in found if "completions" in json.dumps(request)]

    async def assert_resilient(self, *allowed: str) -> None:
        verdict = await self.call("GET", "/_llmock/verdict")
        found = {finding["code"] for finding in verdict["findings"]}
        self.assertEqual(found - set(allowed), set(), verdict)

    def runtime(self, tool: str | None = None, **settings: Any) -> ModelRuntime:
        """A runtime; `tool` is the Python program of a tool get_weather."""
        tools = {}
        if tool is not None:
            file = self.root / "tool.py"
            file.write_text(f"ROOT = {str(self.root)!r}\n" + textwrap.dedent(tool))
            tools["get_weather"] = ToolSettings(
                command=[sys.executable, str(file)],
                description="Get the current weather for a city",
                parameters=WEATHER,
            )
        values = {"url": self.base + "/v1", "model": "gpt-4o", "api_key_env": "KEY"} | settings
        made = ModelRuntime(
            reactor, ModelSettings(tools=tools, **values), environ={"KEY": "sk-test"}
        )
        self.addCleanup(made.stop)
        return made


class AnswerTests(ModelCase):
    async def test_an_answer_streams_and_stays_as_a_message(self) -> None:
        await self.script({"type": "reply", "text": "Two words, é and 😀."})
        sink = RecordingSink()
        outcome = await self.runtime().run(run_request(), sink).done
        self.assertEqual(outcome, RunOutcome("completed"))
        self.assertEqual(sink.said[0], ("started", "gpt-4o"))
        self.assertEqual(sink.deltas, "Two words, é and 😀.")
        self.assertGreater(sum(isinstance(said, Delta) for said in sink.said), 1)
        self.assertEqual(sink.messages, [("assistant", "Two words, é and 😀.")])
        await self.assert_resilient()

    async def test_refusals_that_pass_are_waited_for_as_the_server_asks(self) -> None:
        await self.script(
            {"type": "fail", "status": 429, "retry_after": 1, "times": 1},
            {"type": "fail", "status": 503, "times": 1},
            {"type": "reply", "text": "at last"},
        )
        sink = RecordingSink()
        outcome = await self.runtime().run(run_request(), sink).done
        self.assertEqual(outcome, RunOutcome("completed"))
        self.assertEqual(sink.messages, [("assistant", "at last")])
        await self.assert_resilient()

    async def test_a_refusal_for_good_is_told_and_not_repeated(self) -> None:
        await self.script({"type": "fail", "status": 401, "times": None})
        outcome = await self.runtime().run(run_request(), RecordingSink()).done
        self.assertEqual(outcome.status, "error")
        self.assertIn("HTTP status 401", outcome.message or "")
        self.assertNotIn("sk-test", outcome.message or "")
        self.assertEqual(len(await self.requests()), 1)
        await self.assert_resilient()

    async def test_an_answer_that_breaks_off_is_an_error_and_not_asked_for_again(self) -> None:
        for kind in ("disconnect", "truncate", "malformed"):
            with self.subTest(kind):
                await self.call("POST", "/_llmock/reset")
                await self.script(
                    {"type": "stream_fault", "kind": kind, "after_chunks": 3, "times": 1},
                )
                sink = RecordingSink()
                outcome = await self.runtime().run(run_request(), sink).done
                self.assertEqual(outcome.status, "error")
                # What was shown stays.
                self.assertEqual(sink.messages, [("assistant", sink.deltas)])
                self.assertEqual(len(await self.requests()), 1)
                await self.assert_resilient(*UNTOLD)

    async def test_an_answer_that_stalls_is_given_up(self) -> None:
        await self.script(
            {"type": "stream_fault", "kind": "stall", "stall_seconds": 30, "after_chunks": 2}
        )
        outcome = await self.runtime(idle_timeout=0.5).run(run_request(), RecordingSink()).done
        self.assertEqual(outcome.message, "the model: it does not answer in time")
        await self.assert_resilient("gave_up")

    async def test_cancel_ends_an_answer_at_once(self) -> None:
        await self.script({"type": "slow_first_token", "seconds": 30})
        run = self.runtime().run(run_request(), RecordingSink())
        await after(0.5)
        began = reactor.seconds()
        run.cancel(1.0)
        self.assertEqual(await run.done, CANCELLED)
        self.assertLess(reactor.seconds() - began, 0.5)

    async def test_nobody_there_is_tried_a_few_times(self) -> None:
        runtime = self.runtime(url="http://127.0.0.1:1/v1", retries=1)
        outcome = await runtime.run(run_request(), RecordingSink()).done
        self.assertIn("it cannot be reached (ConnectionRefusedError)", outcome.message or "")

    async def test_b26_history_and_an_interrupted_run_reach_the_model(self) -> None:
        request = run_request(
            "and now?",
            interrupted=True,
            history=[
                Message("q0", "r0", "user", "first"),
                Message("q0", "r0", "assistant", "one"),
                Message("q0", "r0", "tool", "left out"),
            ],
        )
        await self.runtime(system="Be brief.").run(request, RecordingSink()).done
        text = json.dumps(await self.requests())
        for words in ("Be brief.", "was interrupted", "first", "and now?"):
            self.assertIn(words, text)
        self.assertNotIn("left out", text)


class ToolTests(ModelCase):
    tool = """
        import json, sys
        city = json.load(sys.stdin)["city"]
        with open(f"{ROOT}/effects", "a") as file:
            file.write(city + "\\n")
        print(f"21 degrees in {city}")
    """

    def effects(self) -> list[str]:
        file = self.root / "effects"
        return file.read_text().split() if file.exists() else []

    async def test_a_tool_runs_once_after_its_approval_and_the_model_hears_of_it(self) -> None:
        await self.script(
            {
                "type": "reply",
                "tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}],
            },
        )
        asked: list[Command] = []

        def answer(command: Command) -> Accepted:
            asked.append(command)
            self.assertEqual(self.effects(), [])
            return Accepted()

        sink = RecordingSink(answer)
        outcome = await self.runtime(self.tool).run(run_request("Weather?"), sink).done
        self.assertEqual(outcome, RunOutcome("completed"))
        self.assertEqual(self.effects(), ["Oslo"])
        [command] = asked
        assert isinstance(command, RequestApproval)
        self.assertEqual(json.loads(bytes(command.arguments)), {"city": "Oslo"})
        states = [state for _, _, state in sink.tools]
        self.assertEqual(states, ["requested", "running", "completed"])
        self.assertEqual(len(sink.messages), 1)
        self.assertIn("21 degrees in Oslo", json.dumps(await self.requests()))
        await self.assert_resilient()

    async def test_a_refused_call_does_not_run(self) -> None:
        sink = RecordingSink(lambda command: Rejected("not today"))
        outcome = await self.runtime(self.tool).run(run_request("Weather?"), sink).done
        self.assertEqual(outcome, RunOutcome("completed"))
        self.assertEqual(self.effects(), [])
        self.assertEqual([state for _, _, state in sink.tools], ["requested", "rejected"])
        self.assertIn("not today", json.dumps(await self.requests()))

    async def test_retries_after_a_tool_do_not_run_it_again(self) -> None:
        await self.script(
            {
                "type": "reply",
                "tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}],
            },
            {"type": "fail", "status": 500, "times": 2},
        )
        sink = RecordingSink()
        outcome = await self.runtime(self.tool).run(run_request("Weather?"), sink).done
        self.assertEqual(outcome, RunOutcome("completed"))
        self.assertEqual(self.effects(), ["Oslo"])

    async def test_a_call_that_is_broken_is_refused_without_asking(self) -> None:
        for kind in ("malformed_arguments", "unknown_tool"):
            with self.subTest(kind):
                await self.call("POST", "/_llmock/reset")
                await self.script({"type": "tool_fault", "kind": kind, "times": 1})
                sink = RecordingSink(lambda command: self.fail("asked"))
                outcome = await self.runtime(self.tool).run(run_request("Weather?"), sink).done
                self.assertEqual(outcome, RunOutcome("completed"))
                self.assertEqual([state for *_, state in sink.tools], ["requested", "rejected"])
                self.assertEqual(self.effects(), [])

    async def test_cancel_ends_a_tool_and_what_it_forked(self) -> None:
        stubborn = """
            import os, signal, time
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.fork()
            open(f"{ROOT}/effects", "a").write(f"{os.getpid()}\\n")
            time.sleep(60)
        """
        run = self.runtime(stubborn).run(run_request("Weather?"), RecordingSink())
        while len(self.effects()) < 2:
            await after(0.02)
        began = reactor.seconds()
        run.cancel(0.2)
        self.assertEqual(await run.done, CANCELLED)
        self.assertLess(reactor.seconds() - began, 1.0)
        for pid in self.effects():
            self.assertFalse(alive(int(pid)))

    async def test_cancel_ends_a_run_that_waits_for_an_approval(self) -> None:
        sink = RecordingSink(lambda command: None)
        run = self.runtime(self.tool).run(run_request("Weather?"), sink)
        while not sink.open:
            await after(0.02)
        run.cancel(1.0)
        self.assertEqual(await run.done, CANCELLED)
        sink.reject_open()
        self.assertEqual(self.effects(), [])
