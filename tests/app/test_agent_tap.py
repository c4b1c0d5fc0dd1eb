"""The agent's tap: options and their faults; nothing is opened before the start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.python import usage
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.agent_control import AgentOps
from cortextx.app.agent_tap import AgentProcess, Options, makeService, server_pin, socket_path
from cortextx.app.linesocket import OpError
from cortextx.app.spare import absent
from cortextx.app.statedir import StateDir
from cortextx.errors import ConfigError
from cortextx.fleet.agent import making
from cortextx.fleet.agent.buffer import Buffer
from cortextx.fleet.agent.disk import RealDisk
from cortextx.fleet.agent.identity import Enrolment, Identity, IdentityFiles
from cortextx.fleet.agent.settings import AgentSettings, ServerTable


class Taps(SynchronousTestCase):
    def setUp(self) -> None:
        # A socket's path must be short, and trial's directories are long.
        root = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, root)
        self.state = os.path.join(root, "s")

    def options(self, *arguments: str, **environ: str) -> Options:
        options = Options(environ)
        options.parseOptions(["--state-dir", self.state, *arguments])
        return options

    def configured(self, text: str) -> None:
        os.makedirs(self.state, exist_ok=True)
        with open(os.path.join(self.state, "cortex-agent.toml"), "w") as file:
            file.write(text)

    def test_nothing_is_opened_before_the_start(self) -> None:
        """makeService makes no directory, file or socket (architecture)."""
        service = makeService(self.options(), Clock())
        self.assertIsInstance(service, AgentProcess)
        self.assertFalse(os.path.exists(self.state))

    def test_file_and_environment(self) -> None:
        """The file of the state directory is read; the environment wins over it."""
        self.configured('[server]\nurl = "ws://127.0.0.1:1/ws/agent"\n[[sources]]\nkind = "file"\n'
                        'path = "/a"\n')  # fmt: skip
        found = self.options()["settings"]
        self.assertEqual(found.server.url, "ws://127.0.0.1:1/ws/agent")
        self.assertEqual(found.sources[0].path, "/a")
        other = "ws://127.0.0.1:2/ws/agent"
        found = self.options(CORTEXTX_SERVER_URL=other)["settings"]
        self.assertEqual(found.server.url, other)

    def test_faults_are_usage_errors(self) -> None:
        """An unknown key, an insecure URL and a wrong socket are named before anything runs."""
        for text, named in (
            ("[agent]\nallow_source = []\n", "allow_source"),
            ('[server]\nurl = "ws://logs.example/ws/agent"\n', "allow_insecure"),
        ):
            self.configured(text)
            error = self.assertRaises(usage.UsageError, self.options)
            self.assertIn(named, str(error))
        self.configured("")
        self.assertRaises(usage.UsageError, self.options, "--listen", "tcp:1")

    def test_check(self) -> None:
        """--check wants an enrolment, says that all is good, and ends with 0."""
        error = self.assertRaises(usage.UsageError, self.options, "--check")
        self.assertIn("agent enroll", str(error))
        files = IdentityFiles(os.path.join(self.state, "agent"))
        files.enrol("ws://127.0.0.1:1/ws/agent", "t" * 43)
        self.assertEqual(self.assertRaises(SystemExit, self.options, "--check").code, 0)

    def test_check_wants_what_can_run(self) -> None:
        """--check refuses a source of a kind that this host cannot run, and a state
        directory that cannot be made."""
        self.patch(making, "JOURNALCTL", "no-such-program")
        IdentityFiles(os.path.join(self.state, "agent")).enrol("ws://127.0.0.1:1/x", "t" * 43)
        self.configured('[[sources]]\nkind = "journald"\n')
        self.options()
        error = self.assertRaises(usage.UsageError, self.options, "--check")
        self.assertIn("sources[0].kind: expected a kind that can run here", str(error))
        self.state = os.path.join(self.state, "cortex-agent.toml", "below")
        error = self.assertRaises(usage.UsageError, self.options, "--check", "--config", os.devnull)
        self.assertIn("state directory", str(error))

    def test_check_looks_at_what_sources_name(self) -> None:
        """A program that is not there is named with its source; an agent starts all the same."""
        IdentityFiles(os.path.join(self.state, "agent")).enrol("ws://127.0.0.1:1/x", "t" * 43)
        self.configured('[[sources]]\nkind = "custom"\ntype = "exec"\nname = "vm"\n'
                        'command = ["/no/vmstat", "5"]\n')  # fmt: skip
        self.options()
        error = self.assertRaises(usage.UsageError, self.options, "--check")
        self.assertIn("sources[0].command: expected a program that is there", str(error))
        self.assertIn("(vm)", str(error))

    def test_errors_are_in_words(self) -> None:
        """A list that is given as text, and a text of another form, are told without a
        pattern or what would not help."""
        for text, said in (
            ('kind = "file"\npath = "/a"\nexclude = "/b"', 'of strings, as ["a", "b"], got'),
            ('kind = "journald"\nsince = "soon"', "since: expected a time as 90s"),
            ('kind = "journald"\nname = ""', "name: expected"),
        ):
            self.configured(f"[[sources]]\n{text}\n")
            error = str(self.assertRaises(usage.UsageError, self.options))
            self.assertIn(said, error)
            self.assertNotIn("regex", error)
            self.assertNotIn("or one string", error)

    def test_the_fault_is_blamed_on_its_origin(self) -> None:
        """A wrong URL is blamed on the variable or the invitation that it came from, not on
        a file that does not hold it; a misspelt variable is named."""
        url = "ws://logs.example/ws/agent"
        error = self.assertRaises(usage.UsageError, self.options, CORTEXTX_SERVER_URL=url)
        self.assertTrue(str(error).startswith("CORTEXTX_SERVER_URL: server.url"), error)
        error = self.assertRaises(usage.UsageError, self.options, CORTEXTX_SERVER_URI=url)
        self.assertIn("did you mean CORTEXTX_SERVER_URL", str(error))
        self.options(CORTEXTX_SERVER_LISTEN="unix:/x")
        IdentityFiles(os.path.join(self.state, "agent")).enrol(url, "t" * 43)
        error = self.assertRaises(usage.UsageError, self.options, "--check")
        self.assertTrue(str(error).startswith("agent/enrolment.json"), error)

    def test_kinds_of_sources_are_listed(self) -> None:
        """A kind that there is not is answered with those that there are."""
        self.configured('[[sources]]\nkind = "fiel"\npath = "/x"\n')
        error = self.assertRaises(usage.UsageError, self.options)
        self.assertIn("sources[0].kind: expected one of 'custom', 'docker', 'file'", str(error))

    def test_the_socket(self) -> None:
        """The control socket is in the state directory, or where --listen says."""
        directory = StateDir("/x")
        self.assertEqual(socket_path(None, directory), "/x/run/agent.sock")
        self.assertEqual(socket_path("unix:/run/a.sock", directory), "/run/a.sock")

    def test_an_agent_that_is_not_enrolled_ends(self) -> None:
        """Without a token the process ends with a message that says what to do."""
        said: list[str] = []
        process = AgentProcess(
            Clock(),
            StateDir(self.state),
            AgentSettings(),
            "x.toml",
            os.path.join(self.state, "run", "agent.sock"),
            machine_id_path="/nonexistent",
            fail=lambda reactor, message: said.append(message),
        )
        process.startService()
        self.assertIn("agent enroll", said[0])
        self.successResultOf(process.stopService())


class Pins(SynchronousTestCase):
    """Which CA an agent's server must have (F40)."""

    URL = "wss://logs.example/ws/agent"
    ENROLLED, CONFIGURED = "sha256:" + "0a" * 32, "sha256:" + "0b" * 32

    def pin(self, configured: str | None, enrolled: str | None, url: str = URL) -> str | None:
        settings = AgentSettings(server=ServerTable(ca_pin=configured))
        identity = Identity("h", "t", Enrolment(url, enrolled))
        return server_pin(settings, identity, url, "f.toml")

    def test_whose_word_counts(self) -> None:
        """The configuration's pin, else the invitation's; an empty one sets that aside."""
        self.assertIsNone(self.pin(None, None))
        self.assertEqual(self.pin(None, self.ENROLLED), self.ENROLLED)
        self.assertEqual(self.pin(self.CONFIGURED, self.ENROLLED), self.CONFIGURED)
        self.assertIsNone(self.pin("", self.ENROLLED))

    def test_what_protects_nobody(self) -> None:
        """A pin that is none, or for a server in the clear, is refused."""
        self.assertRaises(ConfigError, self.pin, None, "sha256:0a")
        self.assertRaises(ConfigError, self.pin, None, self.ENROLLED, "ws://127.0.0.1/ws/agent")


class Control(SynchronousTestCase):
    def setUp(self) -> None:
        self.rows: list[Any] = []
        self.retries: list[Exception | None] = [None]
        self.reset: list[str] = []
        buffer = Buffer.open(RealDisk(self.mktemp()))
        self.addCleanup(buffer.close)
        buffer.adopt(0)
        buffer.append([b'"ts":"x"}'] * 3, {})
        buffer.sync()
        self.buffer = SimpleNamespace(
            acked=buffer.acked,
            last=buffer.last,
            depth=buffer.depth,
            ask=lambda work: maybeDeferred(work, buffer),
        )
        self.opened = buffer

    def ops(self) -> AgentOps:
        async def status() -> dict[str, Any]:
            return {"state": "active", "connected": True}

        def retry() -> None:
            error = self.retries.pop()
            if error is not None:
                raise error

        agent = SimpleNamespace(status=status, retry=retry, reset_probe=self.reset.append)
        agent.buffer = self.buffer
        return AgentOps(lambda: agent, "1.2.3")  # type: ignore[arg-type, return-value]

    def call(self, op: str, **args: Any) -> Any:
        async def rows(some: Any) -> None:
            self.rows += some

        return self.successResultOf(Deferred.fromCoroutine(self.ops().ops()[op](args, rows)))

    def test_ops(self) -> None:
        """ping, status and retry answer as the command line expects."""
        self.assertEqual(self.call("ping")["version"], "1.2.3")
        self.assertEqual(
            (self.call("status"), self.rows), ({}, [{"state": "active", "connected": True}])
        )
        self.assertEqual(self.call("retry"), {"connected": True})

    def test_the_buffer_is_looked_into(self) -> None:
        """What it holds, whether it is good, and what was set apart until it is acknowledged."""
        self.call("buffer.inspect")
        self.assertEqual(self.rows.pop()["live"], {"acked": 0, "last": 3, "backlog": 3})
        self.call("buffer.verify")
        row = self.rows.pop()
        self.assertEqual((row["entries"], row["good"]), (3, True))
        self.opened.set_aside(2, "InvalidParams")
        self.assertEqual(self.call("buffer.quarantine"), {"acknowledged": []})
        self.assertEqual([row["seq"] for row in self.rows], [2])
        end = self.call("buffer.quarantine", acknowledge=True)
        self.assertEqual(end, {"acknowledged": ["acknowledged-set-aside.jsonl"]})
        self.rows.clear()
        self.call("buffer.quarantine")
        self.assertEqual(self.rows, [])

    def test_a61_a_probe_is_reset(self) -> None:
        self.call("probe.reset", name="cpu.top")
        self.assertEqual(self.reset, ["cpu.top"])

    def test_refusals(self) -> None:
        """A retry without a token and arguments nobody knows are refused in words."""

        def caught(op: str, **args: Any) -> OpError:
            done = Deferred.fromCoroutine(self.ops().ops()[op](args, lambda some: None))
            return self.failureResultOf(done, OpError).value

        self.retries.append(ConfigError("agent/token", "token", "a file"))
        without = caught("retry")
        self.assertEqual(without.code, "not_enrolled")
        self.assertNotIn("restart", str(without.hint))
        self.assertIn("agent enroll", str(without.hint))
        self.retries.append(ConfigError("agent", "enrolment", "what this process began with"))
        self.assertIn("restart", str(caught("retry").hint))
        self.assertEqual(caught("status", verbose=True).code, "bad_request")


class Spare(SynchronousTestCase):
    def test_absent_modules_come_back(self) -> None:
        """A hidden module cannot be imported meanwhile, and can afterwards."""
        sys.modules.pop("this", None)
        with absent("this"), self.assertRaises(ImportError):
            __import__("this")
        self.assertNotIn("this", sys.modules)

    def test_the_agent_imports_no_web_or_terminal_code(self) -> None:
        """Neither twisted.web nor rich nor click is in an agent's process (60 MB budget)."""
        program = (
            "import sys; from cortextx.app.spare import import_websocket\n"
            "import_websocket(); import cortextx.fleet.agent.protocol\n"
            "import cortextx.app.agent_tap, cortextx.fleet.agent.service\n"
            "import cortextx.fleet.agent.buffer_writer, cortextx.fleet.agent.sources.file\n"
            "print([m for m in ('twisted.web', 'rich', 'click', 'sqlite3', 'autobahn.wamp.message')"
            " if m in sys.modules])"
        )
        self.assertEqual(python(program), "[]")

    def test_without_tls_no_openssl(self) -> None:
        """An agent whose server is reached in the clear starts without OpenSSL, which costs 12
        MB; who needs it after that has it. With wss:// it is there from the start."""
        for url, found in (
            ("ws://127.0.0.1:1/ws/agent", "False True"),
            ("wss://a.example", "True True"),
        ):
            program = (
                "import sys, twisted.scripts.twistd\n"
                "from cortextx.app.agent_tap import makeService, StateDir, AgentSettings\n"
                "from cortextx.app.agent_tap import IdentityFiles\n"
                f"d = StateDir({self.mktemp()!r}); d.prepare('agent')\n"
                f"IdentityFiles(d.join('agent')).enrol({url!r}, 't' * 43)\n"
                "makeService({'directory': d, 'settings': AgentSettings(), 'where': 'w',"
                " 'socket': '/x'})\n"
                "early = 'OpenSSL' in sys.modules\n"
                "import twisted.protocols.tls, twisted.internet.ssl\n"
                "print(early, twisted.protocols.tls.TLSMemoryBIOFactory is not None)"
            )
            self.assertEqual(python(program), found)

    def test_another_autobahn_is_imported_whole(self) -> None:
        """Where Autobahn cannot do without its WAMP it gets it, and the agent runs all the same."""
        program = (
            "import sys; from cortextx.app import spare\n"
            "spare._WAMP_BASES = ()\n"
            "spare.import_websocket(); import autobahn.twisted.websocket as made\n"
            "print(made.WebSocketClientProtocol.__name__, 'autobahn.wamp.message' in sys.modules)"
        )
        self.assertEqual(python(program), "WebSocketClientProtocol True")


def python(program: str) -> str:
    """What a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()
