"""Real reverse proxies with TLS, run from the examples in deploy/proxies as they are written.

What an example says of an installation (host name, ports, paths of the
certificate) is put in place of its own; everything else stays.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path
from unittest import TestCase

import cortextx
from tests.integration.peers import need

EXAMPLES = Path(cortextx.__file__).parent.parent / "deploy" / "proxies"
START_SECONDS = 20.0


class Proxy:
    """A proxy in `root` for a server at `upstream` (host:port); ends with the test.

    `tls` is a directory with server.pem, server.key and ca.pem.
    """

    def __init__(self, test: TestCase, root: Path, tls: Path, upstream: str) -> None:
        self.root = root
        self.tls = tls
        self.upstream = upstream
        self.port = free_port()
        self._test = test

    def example(self, name: str, changes: dict[str, str]) -> str:
        """An example with changes; fails if it has nothing to change, as it says so itself."""
        text = (EXAMPLES / name).read_text()
        for old, new in changes.items():
            assert old in text, f"{name} does not have {old!r} any more"
            text = text.replace(old, new)
        return text

    def start(self, *command: str) -> None:
        """Start it, and wait until it accepts."""
        with (self.root / "proxy.log").open("ab") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.root,
                env={**os.environ, "HOME": str(self.root), "XDG_DATA_HOME": str(self.root)},
                start_new_session=True,
            )  # fmt: skip
        self._test.addCleanup(_end, child)
        end = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(self.address, 1):
                return
            if child.poll() is not None or time.monotonic() > end:
                raise AssertionError((self.root / "proxy.log").read_text(errors="replace"))
            time.sleep(0.05)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return "127.0.0.1", self.port

    def connect(self) -> socket.socket:
        """A connection to it by TLS, its certificate checked."""
        context = ssl.create_default_context(cafile=str(self.tls / "ca.pem"))
        raw = socket.create_connection(self.address, 10)
        return context.wrap_socket(raw, server_hostname="localhost")


def nginx(proxy: Proxy) -> None:
    """nginx with deploy/proxies/nginx.conf, as an unprivileged user may run it."""
    example = proxy.example(
        "nginx.conf",
        {
            "/etc/ssl/cortextx/fullchain.pem": str(proxy.tls / "server.pem"),
            "/etc/ssl/cortextx/privkey.pem": str(proxy.tls / "server.key"),
            "server_name logs.example": "server_name localhost",
            "listen 443 ssl": f"listen 127.0.0.1:{proxy.port} ssl",
            "    listen [::]:443 ssl;\n": "",
            "server 127.0.0.1:8600": f"server {proxy.upstream}",
        },
    )
    (proxy.root / "cortextx.conf").write_text(example)
    paths = "".join(
        f"    {name}_temp_path {proxy.root}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (proxy.root / "nginx.conf").write_text(
        f"daemon off;\npid {proxy.root}/nginx.pid;\nerror_log stderr warn;\n"
        f"events {{ worker_connections 1024; }}\n"
        f"http {{\n    access_log off;\n{paths}    include {proxy.root}/cortextx.conf;\n}}\n"
    )
    proxy.start(need("nginx"), "-p", str(proxy.root), "-c", str(proxy.root / "nginx.conf"))


def haproxy(proxy: Proxy) -> None:
    """HAProxy with deploy/proxies/haproxy.cfg."""
    both = (proxy.tls / "server.pem").read_text() + (proxy.tls / "server.key").read_text()
    (proxy.root / "cortextx.pem").write_text(both)
    example = proxy.example(
        "haproxy.cfg",
        {
            "/etc/haproxy/cortextx.pem": str(proxy.root / "cortextx.pem"),
            # The limit of open files may be lower here than such a server has it.
            "maxconn 16384": "maxconn 512",
            "bind :443": f"bind 127.0.0.1:{proxy.port}",
            "server cortextx 127.0.0.1:8600": f"server cortextx {proxy.upstream}",
        },
    )
    (proxy.root / "haproxy.cfg").write_text(example)
    proxy.start(need("haproxy"), "-db", "-f", str(proxy.root / "haproxy.cfg"))


def caddy(proxy: Proxy) -> None:
    """Caddy with deploy/proxies/Caddyfile, and a certificate that is there already."""
    example = proxy.example(
        "Caddyfile",
        {
            "logs.example {": f"https://localhost:{proxy.port} {{\n"
            f"\ttls {proxy.tls}/server.pem {proxy.tls}/server.key\n\tbind 127.0.0.1",
            "reverse_proxy 127.0.0.1:8600": f"reverse_proxy {proxy.upstream}",
        },
    )
    # Its own administration and port 80 are nobody's here.
    head = "{\n\tadmin off\n\tauto_https disable_redirects\n\tdefault_sni localhost\n}\n"
    (proxy.root / "Caddyfile").write_text(head + example)
    at = str(proxy.root / "Caddyfile")
    proxy.start(need("caddy"), "run", "--config", at, "--adapter", "caddyfile")


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a proxy and its workers, which are its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
