"""Asking an endpoint: time-outs, what is asked again and what never is."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost, ConnectionRefusedError
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.client import ResponseDone
from twisted.web.http_headers import Headers

from cortextx.runtimes.endpoint import DRAIN_SECONDS, LONGEST_WAIT, Asking, Endpoint, EndpointFault
from tests.runtimes.test_chat import DONE, chunk


class FakeClient:
    """Takes requests down; the test answers them."""

    def __init__(self) -> None:
        self.requests: list[Deferred[Any]] = []
        self.headers: list[Headers] = []
        self.cancelled = 0

    def post(self, url: str, *, headers: Headers, **_more: Any) -> Deferred[Any]:
        self.url = url
        self.headers.append(headers)

        def note(_deferred: object) -> None:
            self.cancelled += 1

        self.requests.append(Deferred(note))
        return self.requests[-1]


class FakeResponse:
    """A response whose body the test delivers; it is its own transport."""

    def __init__(self, code: int = 200, **headers: str) -> None:
        self.code = code
        self.headers = Headers({name.replace("_", "-"): [text] for name, text in headers.items()})
        self.asked: list[str] = []

    def deliverBody(self, protocol: Any) -> None:
        self.protocol = protocol
        protocol.makeConnection(self)

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.protocol.dataReceived(piece)

    def end(self, error: Exception | None = None) -> None:
        self.protocol.connectionLost(Failure(error or ResponseDone()))

    def loseConnection(self) -> None:
        self.asked.append("lose")

    def pauseProducing(self) -> None:
        self.asked.append("pause")

    def resumeProducing(self) -> None:
        self.asked.append("resume")


class AskingTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.client = FakeClient()
        self.texts: list[str] = []

    def ask(self, **settings: Any) -> Asking:
        client: Any = self.client
        endpoint = Endpoint(
            self.clock, "http://h/v1/", client=client, random=lambda: 1.0, **settings
        )
        return endpoint.ask(b"{}", "secret", self.texts.append)

    def respond(self, code: int = 200, **headers: str) -> FakeResponse:
        response = FakeResponse(code, **headers)
        self.client.requests[-1].callback(response)
        return response

    def fault(self, asking: Asking) -> str:
        return str(self.failureResultOf(asking.answer, EndpointFault).value)

    def assert_idle(self) -> None:
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_text_is_heard_as_it_comes(self) -> None:
        asking = self.ask()
        response = self.respond()
        response.send(chunk(content="a"))
        self.assertEqual(self.texts, ["a"])
        response.send(chunk("stop", content="b"), DONE)
        response.end()
        self.assertEqual(self.successResultOf(asking.answer).text, "ab")
        self.assertEqual(self.client.url, "http://h/v1/chat/completions")
        self.assertEqual(self.client.headers[0].getRawHeaders("authorization"), ["Bearer secret"])
        self.assert_idle()

    def test_a_response_that_goes_on_behind_its_answer_is_cut_off(self) -> None:
        asking = self.ask()
        response = self.respond()
        response.send(chunk("stop", content="a"), DONE)
        self.clock.advance(DRAIN_SECONDS)
        self.successResultOf(asking.answer)
        self.assertEqual(response.asked, ["lose"])
        self.assert_idle()

    def test_before_the_first_piece_it_is_asked_again_with_growing_pauses(self) -> None:
        asking = self.ask(retries=3)
        self.client.requests[-1].errback(ConnectionRefusedError())
        for seconds, code in [(0.5, 500), (1.0, 429), (2.0, 503)]:
            count = len(self.client.requests)
            self.clock.advance(seconds - 0.01)
            self.assertEqual(len(self.client.requests), count)
            self.clock.advance(0.01)
            self.assertEqual(len(self.client.requests), count + 1)
            response = self.respond(code)
            response.send(b'{"error":{"message":"full"}}')
            response.end()
        self.assertEqual(self.fault(asking), "HTTP status 503: full")
        self.assert_idle()

    def test_after_the_first_piece_it_is_not_asked_again(self) -> None:
        for ending in (ConnectionLost(), ResponseDone()):
            asking = self.ask()
            response = self.respond()
            response.send(chunk(content="a"))
            response.end(ending)
            self.fault(asking)
            self.assertEqual(asking.text, "a")
            self.assert_idle()

    def test_a_server_that_asks_for_a_pause_gets_it(self) -> None:
        self.ask()
        self.respond(429, retry_after="7").end()
        self.clock.advance(6.9)
        self.assertEqual(len(self.client.requests), 1)
        self.clock.advance(0.1)
        self.assertEqual(len(self.client.requests), 2)

    def test_a_pause_that_is_too_long_is_a_refusal(self) -> None:
        asking = self.ask()
        self.respond(429, retry_after=str(LONGEST_WAIT + 1)).end()
        self.assertEqual(self.fault(asking), "HTTP status 429")

    def test_what_is_wrong_with_us_is_not_asked_again(self) -> None:
        for code in (301, 400, 401, 404):
            asking = self.ask()
            self.respond(code).end()
            self.assertEqual(self.fault(asking), f"HTTP status {code}")
            self.assert_idle()

    def test_a_head_that_does_not_come_is_waited_for_so_long(self) -> None:
        asking = self.ask(first=5.0, retries=0)
        self.clock.advance(5.0)
        self.assertEqual(self.fault(asking), "it does not answer in time")
        self.assertEqual(self.client.cancelled, 1)
        self.assert_idle()

    def test_each_piece_is_waited_for_so_long(self) -> None:
        asking = self.ask(idle=5.0, retries=0)
        response = self.respond()
        for _ in range(3):
            self.clock.advance(4.9)
            response.send(chunk(content="a"))
        self.clock.advance(5.0)
        self.assertEqual(self.fault(asking), "it does not answer in time")
        self.assertEqual(response.asked, ["lose"])

    def test_a_pause_stops_the_response_and_its_time(self) -> None:
        asking = self.ask(idle=5.0)
        response = self.respond()
        asking.pause()
        response.send(chunk(content="a"))
        self.clock.advance(50.0)
        asking.resume()
        self.assertEqual(response.asked, ["pause", "resume"])
        response.send(chunk("stop", content="a"))
        response.end()
        self.assertEqual(self.successResultOf(asking.answer).text, "aa")
        self.assert_idle()

    def test_a_pause_before_the_head_holds_the_body(self) -> None:
        asking = self.ask()
        asking.pause()
        self.assertEqual(self.respond().asked, ["pause"])

    def test_ended_anywhere_nothing_is_left(self) -> None:
        asking = self.ask()
        asking.end()
        self.assertEqual(self.fault(asking), "it was cancelled")
        self.assertEqual(self.client.cancelled, 1)
        self.assert_idle()

        asking = self.ask()
        response = self.respond()
        asking.end()
        self.assertEqual(response.asked, ["lose"])
        response.send(chunk("stop", content="late"), DONE)
        response.end()
        self.assertEqual(self.fault(asking), "it was cancelled")
        self.assertEqual(self.texts, [])
        self.assert_idle()

        asking = self.ask()
        self.respond(500).end()
        asking.end()
        self.fault(asking)
        self.assert_idle()

    def test_ended_by_who_hears_the_text_nothing_more_is_heard(self) -> None:
        asking = self.ask()

        def end(text: str) -> None:
            self.texts.append(text)
            asking.end()

        asking._text_came = end
        self.respond().send(chunk(content="a") + chunk("stop", content="b") + DONE)
        self.assertEqual(self.texts, ["a"])
        self.fault(asking)
        self.assert_idle()
