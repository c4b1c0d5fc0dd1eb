# ruff: noqa: ASYNC220, ASYNC230, ASYNC240 - small files and processes of a test
"""Syslog listeners with senders that we did not write: logger, rsyslog, OpenSSL."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from twisted.internet import reactor as real_reactor
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import deferLater
from twisted.trial.unittest import SynchronousTestCase, TestCase

from cortextx.fleet.agent.sources.custom_settings import SyslogSettings, TlsFiles
from cortextx.fleet.agent.sources.syslog_listeners import SyslogSource
from tests.integration.harness import Installation
from tests.integration.peers import need
from tests.integration.proxies import free_port

reactor: Any = real_reactor
MANY = 2000
RSYSLOG = """
global(workDirectory="{work}" {driver})
module(load="imfile")
template(name="t" type="string" string="<%pri%>1 2026-03-01T10:00:00.000001Z h %programname% 7 - - %msg%\\n")
input(type="imfile" file="{input}" tag="app:" severity="warning" facility="local3")
action(type="omfwd" target="127.0.0.1" port="{port}" protocol="tcp" template="t"
       TCP_Framing="octet-counted" queue.type="linkedlist" action.resumeRetryCount="-1"
       action.resumeInterval="1" {how})
"""  # noqa: E501


class Store:
    """A buffer's `put` that keeps what it gets, and can be slow or refuse."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.held: list[Deferred[int]] = []
        self.holding = False

    def put(self, bodies: list[bytes], checkpoints: Any, can_wait: bool = True) -> Deferred[int]:
        self.bodies += bodies
        if not self.holding:
            return succeed(0)
        self.held.append(Deferred())
        return self.held[-1]

    def release(self) -> None:
        self.holding = False
        while self.held:
            self.held.pop(0).callback(0)

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(b"{" + body) for body in self.bodies]


class ListenerCase(TestCase):
    timeout = 60

    def setUp(self) -> None:
        self.store = Store()
        self.place = tempfile.mkdtemp(prefix="cxl")
        self.addCleanup(shutil.rmtree, self.place, ignore_errors=True)

    def listen(self, transport: Any, **more: Any) -> SyslogSource:
        """A started listener on a free port, or on the path `sock`."""
        settings = SyslogSettings(transport, path=f"{self.place}/sock", **more)
        source = SyslogSource(reactor, "dev", settings, self.store.put)
        source.start()
        self.addCleanup(source.stop)
        self.port = 0 if transport == "unix" else source._port.getHost().port
        return source

    async def until(self, holds: Callable[[], bool], what: str, seconds: float = 20) -> None:
        """Wait for something, without holding up the reactor."""
        end = time.monotonic() + seconds
        while not holds():
            self.assertTrue(time.monotonic() < end, f"not within {seconds} s: {what}")
            await deferLater(reactor, 0.02)

    def start(self, *argv: str, **more: Any) -> subprocess.Popen[bytes]:
        """A process that ends with the test."""
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, **more)

        def end() -> None:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

        self.addCleanup(end)
        return process

    async def run_peer(self, *argv: str) -> None:
        """A process that must end well."""
        process = self.start(*argv)
        await self.until(lambda: process.poll() is not None, f"the end of {argv[0]}")
        self.assertEqual(process.returncode, 0)


class LoggerTests(ListenerCase):
    """util-linux's logger."""

    def check(self, entry: dict[str, Any], pid: bool) -> None:
        self.assertEqual(entry["message"], "Grüße an alle")
        self.assertEqual((entry["severity"], entry["facility"]), ("err", "local5"))
        self.assertEqual((entry["app_name"], entry["source"]), ("tester", "custom:dev"))
        self.assertEqual("process_id" in entry, pid)

    async def send(self, *how: str) -> list[dict[str, Any]]:
        logger = need("logger")
        before = len(self.store.bodies)
        said = ("-t", "tester", "-p", "local5.err", "Grüße an alle")
        await self.run_peer(logger, *how, *said)
        await self.until(lambda: len(self.store.bodies) > before, "an entry")
        return self.store.entries[before:]

    async def test_udp(self) -> None:
        """RFC 3164 and RFC 5424 datagrams; structured data and the claimed host are metadata."""
        self.listen("udp")
        to = ("-d", "-n", "127.0.0.1", "-P", str(self.port))
        [entry] = await self.send(*to, "--rfc3164", "--id=4711")
        self.check(entry, True)
        self.assertEqual(entry["metadata"]["syslog"]["peer"], "127.0.0.1")
        self.assertEqual(entry["process_id"], "4711")
        data = ("--sd-id", "x@1", "--sd-param", 'a="b"', "--sd-id", "y@1", "--sd-param", 'c="d"')
        [entry] = await self.send(*to, "--rfc5424", "--msgid", "M1", *data)
        self.check(entry, False)
        facts = entry["metadata"]["syslog"]
        self.assertEqual(facts["msgid"], "M1")
        self.assertEqual(facts["structured_data"]["x@1"], {"a": "b"})
        self.assertEqual(facts["structured_data"]["y@1"], {"c": "d"})
        self.assertEqual(facts["hostname"], socket.gethostname())

    async def test_tcp(self) -> None:
        """Both framings of TCP, found out by themselves."""
        source = self.listen("tcp")
        to = ("-T", "-n", "127.0.0.1", "-P", str(self.port))
        self.check((await self.send(*to, "--rfc3164"))[0], False)
        self.check((await self.send(*to, "--rfc5424", "--octet-count", "-i"))[0], True)
        self.check((await self.send(*to, "--rfc5424"))[0], False)
        self.assertEqual(source.report().counters["framing_faults"], 0)
        self.assertEqual(len(self.store.bodies), 3)

    async def test_unix(self) -> None:
        """A datagram socket as /dev/log, and another listener that finds it taken or stale."""
        source = self.listen("unix")
        self.assertEqual(os.stat(f"{self.place}/sock").st_mode & 0o777, 0o666)
        [entry] = await self.send("-u", f"{self.place}/sock", "-i")
        self.check(entry, True)
        second = self.listen("unix")
        self.assertEqual(second.report().state, "waiting")
        self.assertIn("in use", second.report().why)
        await second.stop()
        await source.stop()
        self.assertFalse(os.path.exists(f"{self.place}/sock"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stale:
            stale.bind(f"{self.place}/sock")
        third = self.listen("unix")
        self.assertEqual(third.report().state, "running")
        self.check((await self.send("-u", f"{self.place}/sock"))[0], False)


class RsyslogTests(ListenerCase):
    """rsyslog's omfwd, octet-counted, over TCP and over TLS."""

    async def forward(self, driver: str, how: str) -> None:
        rsyslogd = need("rsyslogd")
        lines = [f"message {n} é" for n in range(MANY)]
        with open(f"{self.place}/input", "w") as file:
            file.write("".join(line + "\n" for line in lines))
        config = RSYSLOG.format(
            work=self.place, input=f"{self.place}/input", port=self.port, driver=driver, how=how
        )
        with open(f"{self.place}/conf", "w") as file:
            file.write(config)
        with open(f"{self.place}/out", "wb") as out:
            self.start(
                rsyslogd, "-n", "-f", f"{self.place}/conf", "-i", f"{self.place}/pid",
                stdout=out, stderr=out,
            )  # fmt: skip
        try:
            await self.until(lambda: len(self.store.bodies) >= MANY, "all entries", 30)
        except AssertionError:
            with open(f"{self.place}/out") as out_file:
                raise AssertionError(out_file.read()[-2000:]) from None
        found = [entry["message"].strip() for entry in self.store.entries]
        self.assertEqual(found, lines)
        first = self.store.entries[0]
        self.assertEqual((first["severity"], first["facility"]), ("warning", "local3"))
        self.assertEqual((first["app_name"], first["ts"]), ("app", "2026-03-01T10:00:00.000001Z"))

    async def test_octet_counted(self) -> None:
        """All that it sends comes, in order and once; it is no framing fault."""
        source = self.listen("tcp")
        await self.forward("", "")
        self.assertEqual(source.report().counters["framing_faults"], 0)

    async def test_tls(self) -> None:
        """The same over TLS, with rsyslog's OpenSSL driver."""
        files = certificates(self.place)
        self.listen("tls", tls=files)
        await self.forward(
            f'defaultNetstreamDriverCAFile="{files.certificate}"',
            'StreamDriver="ossl" StreamDriverMode="1" StreamDriverAuthMode="x509/certvalid"',
        )


class TlsTests(ListenerCase):
    """OpenSSL's own client."""

    async def test_openssl_client(self) -> None:
        """A message through `openssl s_client`, and one without a certificate is refused
        where the listener wants one."""
        openssl = need("openssl")
        files = certificates(self.place)
        self.listen("tls", tls=files)
        await self.s_client(openssl)
        await self.until(lambda: bool(self.store.bodies), "an entry")
        self.assertEqual(self.store.entries[0]["message"], "over tls")
        strict = self.listen("tls", tls=TlsFiles(files.certificate, files.key, files.certificate))
        await self.s_client(openssl)
        await self.until(lambda: strict.report().counters["failed_handshakes"] == 1, "refused")
        self.assertEqual(len(self.store.bodies), 1)
        await self.s_client(openssl, "-cert", files.certificate, "-key", files.key)
        await self.until(lambda: len(self.store.bodies) == 2, "an entry")

    async def s_client(self, openssl: str, *more: str) -> None:
        argv = (openssl, "s_client", "-quiet", "-connect", f"127.0.0.1:{self.port}", *more)
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        assert process.stdin is not None
        try:
            process.stdin.write(b"<13>app: over tls\n")
            process.stdin.flush()
            await deferLater(reactor, 0.5)
        finally:
            process.stdin.close()
            await deferLater(reactor, 0.1)
            process.kill()
            process.wait()

    async def test_plain_text_is_no_tls(self) -> None:
        """A sender that speaks no TLS is closed, and nothing of it is read."""
        source = self.listen("tls", tls=certificates(self.place))
        with socket.create_connection(("127.0.0.1", self.port)) as peer:
            peer.sendall(b"<13>app: in the clear\n")
            await self.until(lambda: source.report().counters["failed_handshakes"] == 1, "its end")
        self.assertEqual(self.store.bodies, [])


class BoundsTests(ListenerCase):
    """What a listener does with more than it can take."""

    async def test_tcp_waits_for_the_buffer(self) -> None:
        """While the buffer takes nothing, a TCP sender is stopped, nothing grows without
        bound, and then everything comes, in order and once."""
        source = self.listen("tcp")
        self.store.holding = True
        count, text = 40_000, b"x" * 600
        sender = self.start(
            sys.executable, "-c",
            "import socket,sys\n"
            f"s=socket.create_connection(('127.0.0.1',{self.port}))\n"
            f"s.sendall(b''.join(b'<13>app: %d {text.decode()}\\n' % n for n in range({count})))",
        )  # fmt: skip
        await self.until(lambda: source._feed.full, "a full feed")
        await deferLater(reactor, 0.5)
        self.assertTrue(source._feed._size < 4 * 2**20, source._feed._size)
        self.assertIsNone(sender.poll())
        self.store.release()
        await self.until(lambda: len(self.store.bodies) == count, "all entries", 40)
        numbers = [int(entry["message"].split()[0]) for entry in self.store.entries]
        self.assertEqual(numbers, list(range(count)))
        self.assertEqual(source.report().counters["dropped"], 0)

    async def test_udp_counts_what_it_drops(self) -> None:
        """Without room datagrams are dropped, here and in the kernel; each is counted, and
        stored + lost is what was sent (F37)."""
        source = self.listen("udp", receive_buffer=8192)
        self.store.holding = True
        sent = 0
        data = b"<13>app: " + b"x" * 1200
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            while not source.report().counters["dropped"]:
                for _ in range(50):
                    peer.sendto(data, ("127.0.0.1", self.port))
                sent += 50
                await deferLater(reactor, 0)
                self.assertTrue(sent < 200_000)
            await deferLater(reactor, 0.1)
        report = source.report()
        self.store.release()
        await source.stop()
        facts = [entry["metadata"] for entry in self.store.entries]
        gaps = [fact["cortextx"]["gap"] for fact in facts if "cortextx" in fact]
        lost = {gap["reason"]: gap["count"] for gap in gaps}
        self.assertEqual({gap["source"] for gap in gaps}, {"custom:dev"})
        self.assertEqual(set(lost), {"overflowed", "kernel_dropped"})
        self.assertEqual(len(facts) - len(gaps) + sum(lost.values()), sent, report.counters)

    async def test_connections_are_bounded(self) -> None:
        """One more than may be is refused; a network that may not send, too."""
        source = self.listen("tcp", max_connections=2)
        peers = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(3)]
        self.addCleanup(lambda: [peer.close() for peer in peers])
        await self.until(lambda: source.report().counters["refused_connections"] == 1, "refusal")
        self.assertEqual(source.report().details["connections"], 2)

    async def test_a_message_cut_off(self) -> None:
        """A connection that is reset within a message leaves what came, flagged."""
        self.listen("tcp")
        peer = socket.create_connection(("127.0.0.1", self.port))
        peer.sendall(b"40 <13>app: begin")
        await deferLater(reactor, 0.2)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        await self.until(lambda: bool(self.store.bodies), "an entry")
        self.assertEqual(self.store.entries[0]["message"], "begin")
        self.assertEqual(self.store.entries[0]["metadata"]["cortextx"], {"partial": True})


class AgentTests(SynchronousTestCase):
    """A whole agent with a listener of its own configuration, and rules."""

    def test_from_logger_to_the_server(self) -> None:
        """What a device sends is found on the server, redacted and without what a rule drops."""
        logger = need("logger")
        place = Installation(self)
        path = f"{place.root}/dev.sock"
        place.write_agent_config(
            f'''
[[sources]]
kind = "custom"
name = "devices"
type = "syslog-unix"
listen = "{path}"
[[rules]]
action = "drop"
match = {{ source = "custom:devices", message = "^noise" }}
[[rules]]
action = "redact"
pattern = 'password=\\S+'
''',
            agent="allow_sources = []",
        )
        place.start_server()
        place.enroll("web1")
        place.start_agent()
        place.wait_until(lambda: os.path.exists(path), "the socket")
        for text in ("one password=abc", "noise", "two"):
            subprocess.run([logger, "-u", path, "-t", "dev", text], check=True, timeout=10)
        place.wait_until(lambda: len(stored(place)) == 2, "two entries")
        self.assertEqual(stored(place), ["one [redacted]", "two"])

    def test_a_listener_by_tls_of_an_agent_without(self) -> None:
        """An agent that reaches its server in the clear starts without OpenSSL, and takes what a
        device sends by TLS all the same."""
        place = Installation(self)
        files = certificates(str(place.root))
        port = free_port()
        place.write_agent_config(
            f'''
[[sources]]
kind = "custom"
name = "devices"
type = "syslog-tls"
listen = "127.0.0.1:{port}"
certificate = "{files.certificate}"
key = "{files.key}"
''',
            agent="allow_sources = []",
        )
        place.start_server()
        place.enroll("web1")
        place.start_agent()
        context = ssl.create_default_context(cafile=files.certificate)
        context.check_hostname = False
        with (
            place.wait_until(lambda: connected(port), "the listener") as raw,
            context.wrap_socket(raw) as secured,
        ):
            secured.sendall(b"<13>app: over tls\n")
        place.wait_until(lambda: len(stored(place)) == 1, "an entry")
        self.assertEqual(stored(place), ["over tls"])


def connected(port: int) -> socket.socket | None:
    """A connection; None while nobody listens."""
    try:
        return socket.create_connection(("127.0.0.1", port), 10)
    except ConnectionRefusedError:
        return None


def stored(place: Installation) -> list[str]:
    """The messages that came from the listener."""
    return [row["message"] for row in place.tail_all() if row["source"] == "custom:devices"]


def certificates(place: str) -> TlsFiles:
    """A self-signed certificate for 127.0.0.1, good for both ends."""
    files = TlsFiles(f"{place}/cert.pem", f"{place}/key.pem")
    if not os.path.exists(files.key):
        subprocess.run(
            [need("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt",
             "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", files.key,
             "-out", files.certificate],
            check=True, capture_output=True, timeout=30,
        )  # fmt: skip
    return files
