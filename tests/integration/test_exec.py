"""The `exec` runtime with real processes: whatever a child does, its end is the run's end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

from msgspec import Raw
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SkipTest, TestCase

from cortextx.core.exchange import Accepted, Command, Rejected, RequestApproval, Result, Value
from cortextx.interfaces.sessions import RunOutcome
from cortextx.runtimes.exec import CANCELLED, ExecRuntime
from cortextx.runtimes.remains import receipt_of
from cortextx.runtimes.settings import ExecSettings
from tests.integration.children import after, alive, marked
from tests.integration.harness import environment
from tests.runtimes.fakes import KEY, RecordingSink, run_request

NOBODY = 65534


def descriptors() -> list[str]:
    """The descriptors of this process."""
    return os.listdir("/proc/self/fd")


class ExecCase(TestCase):
    timeout = 30

    def setUp(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="cx", dir="/tmp"))
        self.root.chmod(0o755)
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)

    def runtime(self, program: str, **settings: Any) -> ExecRuntime:
        """A runtime of a Python program; `ROOT` there is the test's directory."""
        file = self.root / "child.py"
        file.write_text(f"ROOT = {str(self.root)!r}\n" + textwrap.dedent(program))
        settings = {"env": {"PYTHONPATH": os.getcwd()}} | settings
        made = ExecRuntime(reactor, ExecSettings(command=[sys.executable, str(file)], **settings))
        self.addCleanup(made.stop)
        return made

    def pids(self, name: str = "pids") -> list[int]:
        file = self.root / name
        return [int(word) for word in file.read_text().split()] if file.exists() else []


class SpeakingTests(ExecCase):
    async def test_a_child_of_the_sdk_answers_asks_and_is_done(self) -> None:
        runtime = self.runtime("""
            from cortextx.runtimes import child

            @child.main
            def answer(run):
                print("to the log")
                run.start("tiny")
                run.delta(run.input.upper())
                run.tool("t1", "shell", "requested")
                assert run.approve("shell", {"command": "é"})
                assert not run.approve("shell", {"command": "no"})
                run.message(run.ask("Who?"))
                run.message(repr(run.history) + run.cwd)
        """)

        def answer(command: Command) -> Result:
            if isinstance(command, RequestApproval):
                return Rejected("no") if b"no" in bytes(command.arguments) else Accepted()
            return Value(Raw(b'"me"'))

        sink = RecordingSink(answer)
        outcome = await runtime.run(run_request("hi é"), sink).done
        self.assertEqual(outcome, RunOutcome("completed"))
        self.assertEqual(sink.said[0], ("started", "tiny"))
        self.assertEqual(sink.deltas, "HI É")
        self.assertEqual(sink.messages, [("assistant", "me"), ("assistant", "[]/tmp")])

    async def test_a_child_has_no_environment_and_no_descriptors_but_its_own(self) -> None:
        held = os.open("/dev/null", os.O_RDONLY)
        os.set_inheritable(held, True)
        self.addCleanup(os.close, held)
        os.environ["SECRET"] = "1"
        self.addCleanup(os.environ.pop, "SECRET")
        runtime = self.runtime(
            """
            import os
            from cortextx.runtimes import child

            @child.main
            def answer(run):
                here = sorted(os.environ)
                fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))
                run.message(f"{here} {fds} {os.getpgid(0) == os.getsid(0)}")
            """,
        )
        sink = RecordingSink()
        await runtime.run(run_request(), sink).done
        [(_, text)] = sink.messages
        self.assertNotIn("SECRET", text)
        self.assertTrue(text.endswith("True"), text)
        # 0, 1, 2, what the SDK keeps of 1, and the directory that is being listed.
        self.assertIn("[0, 1, 2, 3, 4]", text)
        self.assertIn("'CORTEXTX_RECEIPT', 'CORTEXTX_RUN'", text)

    async def test_invalid_utf8_is_replaced_and_a_last_line_without_end_is_no_answer(self) -> None:
        runtime = self.runtime(r"""
            import os
            os.write(1, b'{"type":"delta","text":"a\xff\\ud800b"}\n{"type":"done"}')
        """)
        sink = RecordingSink()
        outcome = await runtime.run(run_request(), sink).done
        self.assertEqual(sink.deltas, "a\ufffd\ufffdb")
        self.assertEqual(outcome.status, "error")
        self.assertIn("it ended with code 0", outcome.message or "")

    async def test_a_flood_without_a_newline_ends_the_run(self) -> None:
        runtime = self.runtime("""
            import os
            while True:
                os.write(1, b"{" * 65536)
        """)
        outcome = await runtime.run(run_request(), RecordingSink()).done
        self.assertIn("longer than 1048576 bytes", outcome.message or "")

    async def test_a_paused_child_waits_and_loses_nothing(self) -> None:
        runtime = self.runtime("""
            from cortextx.runtimes import child

            @child.main
            def answer(run):
                for number in range(5000):
                    run.delta(f"{number:05} " + "x" * 94)
                open(f"{ROOT}/through", "w").close()
        """)
        sink = RecordingSink()
        run = runtime.run(run_request(), sink)

        def pause(said: Any) -> None:
            if len(sink.said) == 100:
                run.pause()
                reactor.callLater(0.5, check)

        def check() -> None:
            self.assertEqual(len(sink.said), 100)
            self.assertFalse((self.root / "through").exists())
            run.resume()

        sink.heard = pause
        self.assertEqual(await run.done, RunOutcome("completed"))
        self.assertEqual(sink.deltas.count("x" * 94), 5000)

    async def test_a_child_that_reads_no_answers_is_ended(self) -> None:
        runtime = self.runtime("""
            while True:
                print('{"type":"approval_request","id":"a","name":"n"}', flush=True)
        """)
        outcome = await runtime.run(run_request(), RecordingSink()).done
        self.assertEqual(outcome.message, "the child does not read its answers")

    async def test_many_runs_at_once_leave_nothing_behind(self) -> None:
        command = ["/bin/sh", "-c", """read x; sleep 60 & echo '{"type":"done"}'"""]
        runtime = ExecRuntime(reactor, ExecSettings(command=command, max_runs=20))
        # The first run opens what the thread pool and the like keep.
        await runtime.run(run_request(), RecordingSink()).done
        before = len(descriptors())
        runs = [runtime.run(run_request(run=f"r{n}"), RecordingSink()) for n in range(60)]
        outcomes = [await run.done for run in runs]
        self.assertEqual(outcomes, [RunOutcome("completed")] * 60)
        self.assertEqual(len(descriptors()), before)
        self.assertEqual([marked(receipt_of(KEY, f"r{n}")) for n in range(0, 60, 10)], [[]] * 6)

    async def test_what_cannot_be_started_says_why(self) -> None:
        missing = ExecRuntime(reactor, ExecSettings(command=["/no/such/program"]))
        outcome = await missing.run(run_request(), RecordingSink()).done
        self.assertIn("command: No such file", outcome.message or "")
        outcome = await missing.run(run_request(cwd="/no/such"), RecordingSink()).done
        self.assertIn("cwd: No such file", outcome.message or "")

    async def test_i27_a_directory_that_leads_out_of_the_workspace_is_refused(self) -> None:
        (self.root / "out").symlink_to("/usr")
        runtime = self.runtime("raise SystemExit")
        request = run_request(cwd=str(self.root / "out"), workspace=str(self.root))
        outcome = await runtime.run(request, RecordingSink()).done
        self.assertIn("outside the workspace", outcome.message or "")


class OwnerTests(ExecCase):
    """S1: a run is its owner's, and nobody else's."""

    # A user may not be able to read the interpreter of these tests.
    program = (
        """printf '{"type":"message","content":"%s"}\\n{"type":"done"}\\n' """
        """"$(id -u) $(id -ru) $(id -g) $(id -G) $HOME $USER" """
    )

    def shell(self) -> ExecRuntime:
        made = ExecRuntime(reactor, ExecSettings(command=["/bin/sh", "-c", self.program]))
        self.addCleanup(made.stop)
        return made

    async def test_s1_a_run_has_its_owners_identity_and_no_more(self) -> None:
        if os.geteuid() != 0:
            raise SkipTest("needs root")
        self.addCleanup(os.setgroups, os.getgroups())
        os.setgroups([4])
        sink = RecordingSink()
        request = run_request(owner=NOBODY)
        outcome = await self.shell().run(request, sink).done
        self.assertEqual(outcome, RunOutcome("completed"))
        [(_, text)] = sink.messages
        self.assertEqual(text, " ".join([str(NOBODY)] * 4) + " /nonexistent nobody")

    async def test_s1_a_directory_is_entered_with_the_owners_rights(self) -> None:
        if os.geteuid() != 0:
            raise SkipTest("needs root")
        private = self.root / "private"
        private.mkdir(mode=0o700)
        request = run_request(owner=NOBODY, cwd=str(private))
        outcome = await self.shell().run(request, RecordingSink()).done
        self.assertIn("cwd: Permission denied", outcome.message or "")

    async def test_s1_a_uid_without_a_user_is_refused(self) -> None:
        if os.geteuid() != 0:
            raise SkipTest("needs root")
        request = run_request(owner=54321)
        outcome = await self.shell().run(request, RecordingSink()).done
        self.assertIn("no user has the uid 54321", outcome.message or "")

    def test_s1_a_slave_that_is_not_root_runs_nothing_as_somebody_else(self) -> None:
        self.patch(os, "geteuid", lambda: 1000)
        run = self.shell().run(run_request(owner=NOBODY), RecordingSink())
        return run.done.addCallback(
            lambda outcome: self.assertIn("cannot run as uid", outcome.message)
        )


STUBBORN = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0 and {escape}:
        os.setsid()
    with open(f"{{ROOT}}/pids", "a") as file:
        file.write(f"{{os.getpid()}} ")
    time.sleep(0.2)
    os.write(1, b'{{"type":"start"}}\\n')
    while True:
        time.sleep(60)
"""


class EndingTests(ExecCase):
    """Early test 9: a child that forks, ignores TERM and holds its standard output."""

    async def assert_ended(self, program: str, grace: float, within: float) -> None:
        sink = RecordingSink()
        runtime = self.runtime(program)
        run = runtime.run(run_request(), sink)
        begun: Deferred[None] = Deferred()
        sink.heard = lambda said: begun.callback(None) if len(sink.said) == 1 else None
        await begun
        pids = self.pids()
        self.assertEqual([alive(pid) for pid in pids], [True, True])
        at = time.monotonic()
        run.cancel(grace)
        outcome = await run.done
        took = time.monotonic() - at
        self.assertEqual(outcome, CANCELLED)
        self.assertEqual([alive(pid) for pid in pids], [False, False])
        self.assertLess(took, within)

    async def test_b23_cancel_kills_a_group_that_ignores_term_after_the_grace(self) -> None:
        await self.assert_ended(STUBBORN.format(escape=False), 0.3, 1.0)

    async def test_b23_cancel_kills_a_fork_that_left_the_group(self) -> None:
        await self.assert_ended(STUBBORN.format(escape=True), 0.3, 1.0)

    async def test_b23_cancel_without_grace_is_at_once(self) -> None:
        await self.assert_ended(STUBBORN.format(escape=False), 0.0, 0.5)

    async def test_a_fork_that_outlives_its_parent_goes_with_the_run(self) -> None:
        runtime = self.runtime("""
            import os, signal, time
            from cortextx.runtimes import child

            @child.main
            def answer(run):
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                if os.fork() == 0:
                    os.setsid()
                    time.sleep(60)
                with open(f"{ROOT}/pids", "a") as file:
                    file.write(f"{os.getpid()}")
        """)
        outcome = await runtime.run(run_request(), RecordingSink()).done
        self.assertEqual(outcome, RunOutcome("completed"))

    async def test_a_run_that_waits_for_a_slot_can_be_cancelled(self) -> None:
        runtime = self.runtime(STUBBORN.format(escape=False), max_runs=1)
        first = runtime.run(run_request(), RecordingSink())
        waiting = RecordingSink()
        second = runtime.run(run_request(run="run-2"), waiting)
        second.cancel(1.0)
        self.assertEqual(await second.done, CANCELLED)
        self.assertEqual(waiting.said, [])
        first.cancel(0.0)
        self.assertEqual(await first.done, CANCELLED)

    async def test_stop_ends_all_runs(self) -> None:
        runtime = self.runtime("import time; time.sleep(60)")
        runs = [runtime.run(run_request(run=f"r{n}"), RecordingSink()) for n in range(5)]
        await runtime.stop()
        self.assertEqual([(await run.done).status for run in runs], ["cancelled"] * 5)

    async def test_time_is_up_for_a_run_too(self) -> None:
        runtime = self.runtime("import time; time.sleep(60)", timeout=0.3)
        outcome = await runtime.run(run_request(), RecordingSink()).done
        self.assertEqual(outcome, RunOutcome("error", "the time is up"))


SLAVE = """
    import os, sys
    from twisted.internet import reactor
    from cortextx.runtimes.exec import ExecRuntime
    from cortextx.runtimes.settings import ExecSettings
    from tests.runtimes.fakes import RecordingSink, run_request

    runtime = ExecRuntime(reactor, ExecSettings(command=[sys.executable, sys.argv[1]]))
    run = runtime.run(run_request(), RecordingSink())
    reactor.run()
"""

EFFECT = """
    import os, signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        while True:
            time.sleep(60)
    while True:
        with open(f"{ROOT}/effects", "a") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(0.05)
"""


class SlaveDeathTests(ExecCase):
    """Early test 9: kill -9 of the slave between an effect and its record."""

    async def test_b25_what_a_dead_slave_left_is_ended_by_its_receipt_alone(self) -> None:
        runtime = self.runtime(EFFECT)
        slave = self.root / "slave.py"
        slave.write_text(textwrap.dedent(SLAVE))
        process = self.start(str(slave), str(self.root / "child.py"))
        effects = self.root / "effects"
        end = time.monotonic() + 15
        while not effects.exists() and time.monotonic() < end:
            await after(0.02)
        left = marked(receipt_of(KEY, "run-1"))
        self.assertEqual(len(left), 2)

        process.send_signal(signal.SIGKILL)
        process.wait()
        await runtime.clear(KEY, ["another run"])
        # The kernel ended the child with its slave, but not what the child forked.
        self.assertEqual(len(marked(receipt_of(KEY, "run-1"))), 1)
        await runtime.clear(KEY, ["run-1"])
        self.assertEqual([alive(pid) for pid in left], [False, False])
        count = len(effects.read_text())
        await after(0.2)
        self.assertEqual(len(effects.read_text()), count)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a Python program that ends with the test at the latest."""
        path = {**environment(), "PYTHONPATH": os.getcwd()}
        process = subprocess.Popen([sys.executable, *command], env=path)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process
