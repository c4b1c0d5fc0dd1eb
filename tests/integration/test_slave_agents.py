"""The slave's agents as configured, and its page in the docs: all of it works as printed."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.integration.children import alive
from tests.integration.harness import environment
from tests.integration.peers import need
from tests.integration.slave_harness import (
    Line,
    SlaveCase,
    ask,
)

DOC = Path(__file__).parents[2] / "docs" / "slave.md"


class Children(SlaveCase):
    """Agents that are commands."""

    def write_agent(self, program: str) -> None:
        script = self.house.root / "agent.sh"
        script.write_text("read -r request\n" + program)
        self.house.write_config(
            f'[agents.child]\nruntime = "exec"\ncommand = ["/bin/sh", "{script}"]\n'
        )

    def test_a_long_run_is_followed_over_cuts_B05(self) -> None:
        """A client that is cut every 200 ms has every fact once, in order, by resuming."""
        self.write_agent(
            "n=0\nwhile [ $n -lt 60 ]; do n=$((n+1)); sleep 0.03\n"
            'printf \'{"type":"message","content":"%s"}\\n\' $n\ndone\necho \'{"type":"done"}\'\n'
        )
        path = self.house.start()
        request: dict[str, Any] = {"op": "send", "input": "count"}
        found: list[dict[str, Any]] = []
        cuts = 0
        while not found or found[-1]["type"] != "done":
            with Line(path) as line:
                line.send(request)
                line.socket.settimeout(0.2)
                end = time.monotonic() + 0.2
                with contextlib.suppress(TimeoutError):
                    while time.monotonic() < end and (text := line.line()) is not None:
                        found.append(json.loads(text))
            cuts += 1
            self.assertLess(cuts, 100)
            request = {"op": "resume", "after": str(found[-1]["session_seq"])}
        self.assertGreater(cuts, 5)
        self.assertEqual(
            [f["session_seq"] for f in found if f["session_seq"] != 2], [1, *range(3, 65)]
        )
        said = [f["content"] for f in found if f["type"] == "message" and f["role"] == "assistant"]
        self.assertEqual(said, [str(n) for n in range(1, 61)])

    def test_what_a_dead_slaves_child_left_holds_no_lock(self) -> None:
        """A grandchild in a session of its own outlives kill -9; the session opens again all
        the same, its run is interrupted, and what was left is ended (B25)."""
        pids = self.house.root / "pid"
        self.write_agent(f"setsid sh -c 'echo $$ > {pids}; exec sleep 60' &\nwait\n")
        path = self.house.start()
        with Line(path) as line:
            line.send({"op": "send", "input": "x"})
            self.house.wait_until(lambda: pids.exists() and pids.read_text().strip(), "the child")
            self.house.kill()
        left = int(pids.read_text())
        self.assertTrue(alive(left))
        path = self.house.start()
        last = ask(path, {"op": "resume"})[-1]
        self.assertEqual((last["type"], last["status"]), ("done", "interrupted"))
        self.assertFalse(alive(left))


class Models(SlaveCase):
    """An agent that is a model, at a server that we did not write."""

    def setUp(self) -> None:
        super().setUp()
        program = need("llmock")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with (self.house.root / "llmock.out").open("wb") as out:
            server = subprocess.Popen(
                [program, "serve", "--port", str(port), "--log-level", "warning"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.house.root,
            )  # fmt: skip
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        self.base = f"http://127.0.0.1:{port}"
        self.house.wait_until(self.is_up, "llmock")

    def is_up(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.call("/health")[0] == 200)
        return False

    def call(self, path: str, body: object = None) -> tuple[int, bytes]:
        raw = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.base + path, raw, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return answer.status, answer.read()

    def test_it_answers_and_is_told_what_was_said_before(self) -> None:
        """Deltas as they come, the message in the log, and the history in the next request."""
        self.house.write_config(
            f'[agents.model]\nruntime = "model"\nurl = "{self.base}/v1"\nmodel = "gpt-4o"\n'
        )
        path = self.house.start()
        for words, text in (("One?", "It is one."), ("Two?", "It is two.")):
            self.call("/_llmock/scenario", {"behaviors": [{"type": "reply", "text": text}]})
            lines = ask(path, {"op": "send", "input": words})
            types = [line["type"] for line in lines]
            self.assertEqual(types[:2], ["accepted", "start"])
            self.assertEqual(lines[1]["model"], "gpt-4o")
            self.assertEqual("".join(line.get("text", "") for line in lines), text)
            self.assertEqual(lines[-2]["content"], text)
        asked = self.call("/_llmock/requests")[1].decode()
        self.assertIn("It is one.", asked)


class Documented(SlaveCase):
    """docs/slave.md: what stands there works as printed."""

    def blocks(self) -> list[tuple[str, str]]:
        """The commands of each transcript, and what they print."""
        found = []
        for block in written("console"):
            for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                lines = step.splitlines()
                while lines[0].endswith("\\"):
                    lines[:2] = [lines[0] + "\n" + lines[1]]
                found.append((lines[0], "\n".join(lines[1:])))
        return found

    def test_the_transcripts(self) -> None:
        """Each command prints what the page says; identifiers may differ."""
        need("socat")
        need("nc")
        self.house.write_config(written("toml")[0])
        self.house.start()
        blocks = self.blocks()
        self.assertGreater(len(blocks), 9)
        for command, printed in blocks:
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                env=environment() | {"SOCK": self.house.socket},
                capture_output=True, text=True, timeout=20, check=False,
            )  # fmt: skip
            self.assertEqual(plain(done.stdout), plain(printed), command + done.stderr)

    def test_the_client(self) -> None:
        """The program that answers an approval does."""
        self.house.write_config(written("toml")[0])
        sock = self.house.start()
        (program,) = written("python")
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment() | {"SOCK": sock},
            capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
        self.assertEqual((done.stdout, done.stderr), ("Is this all?\n", ""))

    def test_what_the_page_says_of_configuration(self) -> None:
        """The files shown there are accepted."""
        for text in written("toml"):
            if "[[allow]]" in text:
                (self.house.root / "policy.toml").write_text(text)
                text = f'[slave]\npolicy = "{self.house.root}/policy.toml"\n'
            self.house.write_config(text)
            checked = self.twistd("--state-dir", str(self.house.state), "--check")
            self.assertEqual(checked.returncode, 0, checked.stderr)


def written(language: str) -> list[str]:
    """The blocks of the page in a language; there is at least one."""
    found = re.findall(rf"```{language}\n(.*?)```", DOC.read_text(), re.DOTALL)
    assert found, language
    return found


def plain(text: str) -> str:
    """A transcript without the identifiers that are made anew each time."""
    return re.sub(r"\b(run|req)-[0-9a-f]{16}", r"\1-…", text).strip()
