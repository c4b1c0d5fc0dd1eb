"""The slave's plugin: options, settings, and what is checked of them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

from twisted.internet.testing import MemoryReactorClock
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app import slave_settings
from cortextx.app.slave_settings import EchoAgent, Settings
from cortextx.app.slave_tap import (
    Options,
    closed_directory,
    let_pass,
    makeService,
    runtime_of,
)
from cortextx.app.slave_tap import (
    slave_settings as service_settings,
)
from cortextx.interaction.data import DEFAULT_LIMITS
from cortextx.interaction.slave.policy import Rule
from cortextx.runtimes.echo import EchoRuntime
from cortextx.runtimes.exec import ExecRuntime
from cortextx.runtimes.model import ModelRuntime

DOC = Path(__file__).parents[2] / "docs" / "slave.md"


class SlaveCase(SynchronousTestCase):
    def setUp(self) -> None:
        above = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, above, ignore_errors=True)
        self.state = os.path.join(above, "s")

    def parse(self, *args: str, **environ: str) -> Options:
        options = Options(environ)
        options.parseOptions(["--state-dir", self.state, *args])
        return options

    def settings(self, text: str = "", *args: str, **environ: str) -> Settings:
        """The settings, with this in the configuration file."""
        self.write("cortex-slave.toml", text)
        made: Settings = self.parse(*args, **environ)["settings"]
        return made

    def write(self, name: str, text: str) -> str:
        os.makedirs(self.state, exist_ok=True)
        path = os.path.join(self.state, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def fault(self, text: str) -> str:
        """What is said of a wrong file."""
        return str(self.assertRaises(UsageError, self.settings, text))


class Defaults(SlaveCase):
    def test_without_a_word_there_is_echo(self) -> None:
        """One agent, `echo`, that also serves v1 requests which name nobody (I24)."""
        settings: Settings = self.parse()["settings"]
        self.assertEqual(settings.agents, {"echo": EchoAgent()})
        self.assertEqual(slave_settings.default_agent(settings), "echo")

    def test_the_limits_are_those_of_the_ruling(self) -> None:
        """What welcome says without a word is I16's."""
        self.assertEqual(Settings().limits.limits(), DEFAULT_LIMITS)

    def test_nothing_is_made_before_the_start(self) -> None:
        """Making the service touches no disk."""
        makeService(self.parse(), MemoryReactorClock())
        self.assertFalse(os.path.exists(self.state))

    def test_check(self) -> None:
        """--check says that all is well, and does nothing else."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            left = self.assertRaises(SystemExit, self.parse, "--check")
        self.assertEqual(
            (left.code, said.getvalue()), (0, "cortex-slave: the configuration is good\n")
        )
        self.assertFalse(os.path.exists(self.state))

    def test_help(self) -> None:
        """--help names every option."""
        text = str(Options({}))
        for option in ("--state-dir", "--socket", "--config", "--check"):
            self.assertIn(option, text)


class Agents(SlaveCase):
    def test_each_runtime(self) -> None:
        """`runtime` chooses, and the rest of the table is that runtime's."""
        settings = self.settings(
            """
            [agents.a]
            runtime = "echo"
            delay = 0.5
            approve = true
            [agents.b]
            runtime = "exec"
            command = ["/bin/true"]
            root = "/tmp"
            [agents.c]
            runtime = "model"
            url = "http://127.0.0.1:1/v1"
            model = "m"
            tools.now = { command = ["/bin/date"], description = "the time" }
            """
        )
        made = [runtime_of(MemoryReactorClock(), agent) for agent in settings.agents.values()]
        self.assertEqual([type(each) for each in made], [EchoRuntime, ExecRuntime, ModelRuntime])
        self.assertEqual(settings.agents["a"], EchoAgent(delay=0.5, approve=True))
        self.assertEqual(settings.agents["b"].root, "/tmp")

    def test_the_default_agent(self) -> None:
        """As configured, else echo, else the first (I24)."""
        two = '[agents.x]\nruntime = "echo"\n[agents.y]\nruntime = "echo"\n'
        self.assertEqual(slave_settings.default_agent(self.settings(two)), "x")
        chosen = self.settings('slave.default_agent = "y"\n' + two)
        self.assertEqual(slave_settings.default_agent(chosen), "y")
        self.assertIn("(x, y)", self.fault('slave.default_agent = "z"\n' + two))

    def test_faults_name_the_field(self) -> None:
        """A wrong setting is told by its name."""
        for text, *wanted in (
            ("agents = {}", "at least one"),
            ("[agents.a]\n", "agents", "runtime"),
            ('[agents.a]\nruntime = "ecko"\n', "agents", "runtime", "ecko"),
            ('[agents.a]\nruntime = "echo"\ndelai = 1\n', "agents", "delai"),
            ('[agents.a]\nruntime = "echo"\ndelay = -1\n', "agents", "delay from 0"),
            ('[agents.a]\nruntime = "exec"\n', "agents", "command"),
            ('[agents.a]\nruntime = "echo"\nroot = "x"\n', "agents.a.root", "absolute"),
            ('[agents.a]\nruntime = "echo"\nroot = "/nowhere"\n', "agents.a.root"),
            ('[agents."a/b"]\nruntime = "echo"\n', "agents.a/b"),
            ("[slave]\nidle = 1\n", "slave.idle", "idle_seconds"),
            ("[slave]\nidle_seconds = -1\n", "slave.idle_seconds"),
            ("[slave]\nslow_seconds = 0\n", "slave.slow_seconds"),
            ("[slave]\napproval_seconds = inf\n", "slave.approval_seconds"),
            ("[slave]\nsession_mib = -1\n", "slave.session_mib"),
            ('[slave]\nv1_form = "odd"\n', "slave.v1_form", "'both'", "'flat'"),
            ('[slave]\nsocket_mode = "0777"\n', "slave.socket_mode"),
            ('[slave]\nsocket_group = "no such group"\n', "slave.socket_group"),
            ("[limits]\nmax_attachments = 0\n", "limits.max_attachments"),
            ("[limits]\nmax_attachment_bytes = 262143\n", "limits.max_attachment_bytes"),
            ("[limits]\nmax_connection_bytes = 524287\n", "limits.max_connection_bytes"),
        ):
            said = self.fault(text)
            for word in wanted:
                self.assertIn(word, said, text)

    def test_options_win(self) -> None:
        """The option wins over the variable, and that over the file; paths become absolute."""
        text = '[slave]\nsocket = "/file"\n'
        self.assertEqual(self.settings(text).slave.socket, "/file")
        variable = {"CORTEXTX_SLAVE_SOCKET": "/variable"}
        self.assertEqual(self.settings(text, **variable).slave.socket, "/variable")
        chosen = self.settings(text, "--socket", "here.sock", **variable).slave.socket
        self.assertEqual(chosen, os.path.abspath("here.sock"))


class Policy(SlaveCase):
    def policy(self, text: str, mode: int = 0o600) -> dict[str, Any]:
        path = self.write("policy.toml", text)
        os.chmod(path, mode)
        return {"CORTEXTX_SLAVE_POLICY": path}

    def mode(self, settings: Settings) -> int:
        rules = slave_settings.rules_of(settings.slave)
        return slave_settings.socket_mode(settings.slave, rules, "here")

    def test_the_rules_are_read(self) -> None:
        """The policy file's rules are as they stand there (I15)."""
        settings = self.settings(**self.policy('[[allow]]\nuids = [7]\nmode = "observe"\n'))
        self.assertEqual(
            slave_settings.rules_of(settings.slave).allow, [Rule(uids=[7], mode="observe")]
        )

    def test_the_socket_is_as_open_as_the_rules_need(self) -> None:
        """0600 without rules; with one 0660 for a group and 0666 without; a mode wins (I15)."""
        some = self.policy("[[allow]]\nuids = [7]\n")
        group = '[slave]\nsocket_group = "root"\n'
        self.assertEqual(self.mode(self.settings()), 0o600)
        self.assertEqual(self.mode(self.settings(group)), 0o600)
        self.assertEqual(self.mode(self.settings(**some)), 0o666)
        self.assertEqual(self.mode(self.settings(group, **some)), 0o660)
        self.assertEqual(self.mode(self.settings('[slave]\nsocket_mode="0600"\n', **some)), 0o600)

    def test_faults(self) -> None:
        """A policy file that is not there, wrong, or anybody's to write, is refused."""
        self.assertIn("/nowhere", self.fault('[slave]\npolicy = "/nowhere"\n'))
        for text, *wanted in (
            ("allow = 1", "allow"),
            ("[[allow]]\nuid = [7]\n", "allow[0].uid", "uids"),
            ('[[allow]]\nscope = "shared"\n', "allow[0].spaces"),
            ("[[allow]]\ndelegate = true\n", "allow[0].owners"),
            ('[[allow]]\ncapabilities = ["all"]\n', "allow[0].capabilities"),
        ):
            environ = self.policy(text)
            said = str(self.assertRaises(UsageError, self.settings, **environ))
            for word in wanted:
                self.assertIn(word, said, text)
        environ = self.policy("[[allow]]\nuids = [7]\n", 0o666)
        self.assertIn(
            "only its owner", str(self.assertRaises(UsageError, self.settings, **environ))
        )

    def test_the_way_to_the_socket(self) -> None:
        """The first directory that keeps others out is told; ours can be opened to pass."""
        run = os.path.join(self.state, "run")
        os.makedirs(run, mode=0o700)
        os.chmod(self.state, 0o700)
        above = os.path.dirname(self.state)
        self.assertEqual(closed_directory(f"{run}/x.sock"), above)
        for directory, next_one in ((above, self.state), (self.state, run), (run, None)):
            let_pass(directory)
            self.assertEqual(closed_directory(f"{run}/x.sock"), next_one)
            self.assertEqual(stat.S_IMODE(os.stat(directory).st_mode), 0o711)


class ServiceSettings(SlaveCase):
    def test_all_reach_the_service(self) -> None:
        """What the file says is what the service gets."""
        settings = self.settings(
            """
            [slave]
            v1_form = "flat"
            slow_seconds = 1
            idle_seconds = 2
            approval_seconds = 3
            max_connections = 4
            max_sessions = 6
            socket_group = "root"
            [limits]
            max_attachments = 5
            """
        )
        made = service_settings(settings, 0o660)
        self.assertEqual((made.form, made.slow_seconds, made.max_connections), ("flat", 1.0, 4))
        self.assertEqual((made.live.idle_seconds, made.live.approval_seconds), (2.0, 3.0))
        self.assertEqual(made.max_sessions, 6)
        self.assertEqual((made.mode, made.group, made.limits.max_attachments), (0o660, 0, 5))


class Documented(SynchronousTestCase):
    def test_every_setting_with_its_default(self) -> None:
        """docs/slave.md lists each setting once, as the code has it."""
        rows = re.findall(r"^\| `(\w+)\.(\w+)` \| (\S+) \|", DOC.read_text(), re.MULTILINE)
        shown = {
            (table, name): None if default == "none" else json.loads(default.strip("`"))
            for table, name, default in rows
        }
        self.assertEqual(len(shown), len(rows))
        whole = Settings()
        tables = {"slave": whole.slave, "limits": whole.limits}
        wanted = {
            (table, name): getattr(values, name)
            for table, values in tables.items()
            for name in values.__struct_fields__
        }
        self.assertEqual(shown, wanted)
