"""The real Prometheus scrapes /metrics with a token, and finds what is there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any
from unittest import SkipTest

from tests import wire
from tests.integration.test_http_api import HttpCase

SCRAPE_SECONDS = 30.0
CONFIG = """\
global:
  scrape_interval: 1s
scrape_configs:
  - job_name: cortextx
    authorization:
      credentials_file: {token_file}
    static_configs:
      - targets: ["{target}"]
  - job_name: stranger
    static_configs:
      - targets: ["{target}"]
"""


class Scraping(HttpCase):
    def setUp(self) -> None:
        prometheus, promtool = shutil.which("prometheus"), shutil.which("promtool")
        if prometheus is None or promtool is None:
            if os.environ.get("REQUIRE_PEERS"):
                raise AssertionError("prometheus is not installed")
            raise SkipTest("prometheus is not installed")
        self.prometheus, self.promtool = prometheus, promtool
        super().setUp()

    def test_promtool_finds_no_fault(self) -> None:
        """Prometheus' own linter accepts every name, help and type."""
        connection, _ = self.server.enrolled()
        with connection:
            status, _, text = self.ask("GET", "/metrics", role="viewer")
        self.assertEqual(status, 200)
        done = subprocess.run(
            [self.promtool, "check", "metrics"], input=text, capture_output=True, timeout=60
        )
        self.assertEqual((done.returncode, done.stderr.decode(), done.stdout), (0, "", b""))

    def test_it_scrapes(self) -> None:
        """A Prometheus with the token gets the values; one without is kept out."""
        connection, _ = self.server.enrolled()
        with connection:
            connection.call(wire.push(2, 1, 7))
            with self.running():
                self.until('cortextx_ingest_entries_total{job="cortextx"}', 7)
                self.until('cortextx_host_accepted_seq{host="testhost"}', 7)
                self.until('up{job="cortextx"}', 1)
                self.until('up{job="stranger"}', 0)

    @contextlib.contextmanager
    def running(self) -> Any:
        """A Prometheus that scrapes our server."""
        token_file = os.path.join(self.state, "scrape.token")
        config = os.path.join(self.state, "prometheus.yml")
        host, port = self.server.address
        with open(token_file, "w") as file:
            file.write(self.tokens["viewer"])
        with open(config, "w") as file:
            file.write(CONFIG.format(token_file=token_file, target=f"{host}:{port}"))
        self.port = free_port()
        with open(os.path.join(self.state, "prometheus.log"), "wb") as log:
            child = subprocess.Popen(
                [
                    self.prometheus,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self.state}/prometheus",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            yield
        finally:
            child.kill()
            child.wait()

    def until(self, query: str, expected: float) -> None:
        """Ask Prometheus until it answers the value."""
        end = time.monotonic() + SCRAPE_SECONDS
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode(
            {"query": query}
        )
        found: Any = None
        while time.monotonic() < end:
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                with urllib.request.urlopen(url, timeout=5) as answer:
                    found = json.load(answer)["data"]["result"]
                if [float(each["value"][1]) for each in found] == [expected]:
                    return
            time.sleep(0.1)
        with open(os.path.join(self.state, "prometheus.log"), errors="replace") as log:
            raise AssertionError(f"{query}: {found}\n{log.read()[-2000:]}")


def free_port() -> int:
    """A port that was free just now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
