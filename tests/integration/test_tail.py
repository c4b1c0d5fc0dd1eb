"""`cortextx tail -f` over restarts of the server, with real processes (A64)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.harness import SERVER, Installation, environment


class Following(SynchronousTestCase):
    """A reader that outlives the server."""

    def test_restarts(self) -> None:
        """Over kill -9 and a clean stop, every line is shown once and in order; ^C ends it."""
        site = Installation(self)
        log = site.root / "logs" / "app.log"
        log.parent.mkdir()
        log.touch()
        site.start_server()
        site.enroll("tail-host")
        site.write_agent_config(
            f'[[sources]]\nkind = "file"\npath = "{log.parent}/*.log"\n',
            agent="allow_sources = []\n",
        )
        site.start_agent()
        out, err = site.root / "tail.out", site.root / "tail.err"
        with out.open("wb") as to_out, err.open("wb") as to_err:
            reader = subprocess.Popen(
                [
                    sys.executable, "-m", "cortextx.app.cli", "--state-dir", str(site.state),
                    "tail", "-f", "-n", "0", "--source", "file:*", "--json",
                ],
                stdin=subprocess.DEVNULL, stdout=to_out, stderr=to_err, env=environment(),
            )  # fmt: skip
        self.addCleanup(lambda: reader.poll() is None and (reader.kill(), reader.wait()))

        def shown() -> list[str]:
            lines = out.read_text().split("\n")[:-1]
            return [json.loads(line)["message"] for line in lines]

        # Wait until the reader stands at the log's end, or it would not see the first line.
        marks = 0

        def first() -> bool:
            nonlocal marks
            marks += 1
            with log.open("a") as file:
                file.write(f"mark {marks}\n")
            return bool(shown())

        site.wait_until(first, "the reader to see anything")
        written: list[str] = []
        for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
            site.stop(SERVER, how)
            with log.open("a") as file:
                for _ in range(50):
                    written.append(f"line {len(written)}")
                    file.write(written[-1] + "\n")
            site.start_server()
            site.wait_until(lambda: shown()[-1] == written[-1], f"the lines after {how.name}")
        self.assertEqual([line for line in shown() if line.startswith("line")], written)
        told = err.read_text()
        self.assertEqual(told.count("went away"), 3)
        self.assertEqual(told.count("is back"), 3)
        reader.send_signal(signal.SIGINT)
        self.assertEqual(reader.wait(10), 130)
