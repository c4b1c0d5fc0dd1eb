"""What no route knows is a problem too: application/problem+json, wherever it is asked."""

from __future__ import annotations

import json

from cortextx.web.problems import CONTENT_TYPE
from tests.web.case import Answer, WebCase


class Refusals(WebCase):
    def problem(self, answer: Answer, status: int, code: str) -> None:
        self.assertEqual(answer.status, status, answer)
        self.assertEqual(answer.headers["content-type"], CONTENT_TYPE.decode())
        told = json.loads(answer.body)
        self.assertEqual((told["status"], told["code"]), (status, code))

    def test_paths_that_are_not_there(self) -> None:
        """404, at the root, beside the API's version, and below things that have nothing below."""
        for path in (
            "/",
            "/nonesuch",
            "/api",
            "/api/",
            "/api/v2/hosts",
            "/api/v1",
            "/api/v1/nonesuch",
            "/healthz/x",
            "/ws",
            "/ws/agent/x",
        ):
            self.problem(self.begin(path).answer(), 404, "not_found")

    def test_methods_that_are_not_known(self) -> None:
        """405 with those that there are."""
        for path in ("/healthz", "/readyz", "/metrics", "/api/v1/openapi.json", "/api/v1/hosts/x"):
            answer = self.begin(path, method="PATCH").answer()
            self.problem(answer, 405, "method_not_allowed")
            self.assertIn("GET", answer.headers["allow"])

    def test_metrics_want_a_token(self) -> None:
        """401 of /metrics is as that of the API."""
        self.problem(self.begin("/metrics", role=None).answer(), 401, "unauthorized")

    def test_a_rebound_name_is_told(self) -> None:
        """421 of the API's description has a body that says so."""
        headers: dict[str, str | None] = {"Host": "evil.example"}
        answer = self.begin("/api/v1/openapi.json", headers=headers).answer()
        self.problem(answer, 421, "unexpected_host")

    def test_head_has_no_body(self) -> None:
        """HEAD is answered by the head alone."""
        answer = self.begin("/nonesuch", method="HEAD").answer()
        self.assertEqual((answer.status, answer.body), (404, b""))
