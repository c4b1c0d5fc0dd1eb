"""§4: the shapes, stated twice, agree; examples, bounds, types and words, one by one."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Raw, to_builtins
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import JsonError
from cortextx.fleet import contract, jsonrpc
from cortextx.fleet.server.hello import HelloFault, decode_hello
from cortextx.fleet.server.pushes import PushFault, SourceNames, decode_metrics, decode_push
from tests.contracts import examples, schemas
from tests.contracts.variants import variants


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def takes(type: Any, value: Any) -> bool:
    try:
        jsonrpc.decode_params(raw(value), type)
    except JsonError:
        return False
    return True


def hello_code(value: Any) -> int | None:
    """The code with which a hello is refused."""
    try:
        decode_hello(raw(value))
    except HelloFault as fault:
        return fault.code
    return None


def push_code(value: Any) -> int | None:
    """The code with which a push is refused."""
    params = raw(value)
    try:
        decode_push(params, bytes(params), SourceNames())
    except PushFault as fault:
        return fault.code
    return None


def metrics_code(value: Any) -> int | None:
    """The code with which samples are refused."""
    try:
        decode_metrics(raw(value))
    except PushFault as fault:
        return fault.code
    return None


class Examples(SynchronousTestCase):
    def test_s4_every_example_fits_its_schema(self) -> None:
        """Each method's example is good by the schema and by the types (§4)."""
        for method, value in examples.PARAMS.items():
            self.assertEqual(schemas.faults(schemas.PARAMS[method], value), [], method)
        for method, value in examples.RESULTS.items():
            self.assertEqual(schemas.faults(schemas.RESULTS[method], value), [], method)
        self.assertIsNone(hello_code(examples.HELLO))
        self.assertIsNone(push_code(examples.PUSH))
        self.assertIsNone(metrics_code(examples.METRICS))

    def test_s4_every_method_has_a_shape_and_a_direction(self) -> None:
        """The methods are the contract's, each of one direction (§4, §10)."""
        self.assertEqual(contract.CLIENT_METHODS | contract.SERVER_METHODS, set(schemas.PARAMS))
        self.assertEqual(
            contract.SERVER_METHODS, schemas.NOTIFIED_BY_SERVER | schemas.ASKED_BY_SERVER
        )
        self.assertEqual(contract.CLIENT_METHODS & contract.SERVER_METHODS, set())


class WhatAServerTakes(SynchronousTestCase):
    """The server's verdict on every variant of an example is the schema's."""

    def compare(self, method: str, verdict: Any, exceptions: dict[str, int | None]) -> None:
        seen = set()
        for name, value in variants(schemas.PARAMS[method], examples.PARAMS[method]):
            code = verdict(value)
            if name in exceptions:
                seen.add(name)
                self.assertEqual(code, exceptions[name], (method, name))
                continue
            wrong = schemas.faults(schemas.PARAMS[method], value)
            self.assertEqual(code, -32602 if wrong else None, (method, name, wrong))
        self.assertEqual(seen, set(exceptions), "an exception that is none")

    def test_s4_1_hello(self) -> None:
        """§4.1: hello; versions other than 1 are -32003 whatever else is wrong (F28)."""
        self.compare(
            "agent.hello",
            hello_code,
            {
                "protocol_version is 7": -32003,
                "protocol_version is -1": -32003,
                "protocol_version is minimum -1": -32003,
                "protocol_version is minimum +1": -32003,
                "protocol_version is maximum -1": -32003,
                "protocol_version is maximum +1": -32003,
            },
        )

    def test_s4_2_heartbeat(self) -> None:
        """§4.2: heartbeats."""
        self.compare(
            "agent.heartbeat",
            lambda value: None if takes(contract.Heartbeat, value) else -32602,
            {},
        )

    def test_s4_4_push(self) -> None:
        """§4.4: pushes; beyond 1,000 entries is -32008, and seqs must run on (F9, F12)."""
        self.compare(
            "logs.push",
            push_code,
            {
                "entries has 1001 items": -32008,
                # The schema knows no seqs that belong together.
                "seq_start is 7": -32602,
                "seq_start is minimum +0": -32602,
                "entries.0.seq is 7": -32602,
                "entries.0.seq is minimum +0": -32602,
            },
        )

    def test_s4_5_metrics(self) -> None:
        """§4.5: samples; beyond 512 is -32008 (F9)."""
        self.compare("metrics.push", metrics_code, {"samples has 513 items": -32008})

    def test_s4_6_probe_output(self) -> None:
        """§4.6, §4.7: what an agent answers to a probe."""
        schema, example = schemas.PROBE_OUTPUT, examples.RESULTS["probe.request"]
        for name, value in variants(schema, example):
            self.assertEqual(
                takes(contract.ProbeOutput, value), not schemas.faults(schema, value), name
            )


class WhatAnAgentTakes(SynchronousTestCase):
    """The types by which an agent reads its server agree with the schemas."""

    def compare(self, type: Any, schema: Any, example: Any, open_to: str = "-") -> None:
        for name, value in variants(schema, example):
            if name.endswith("with one more") and name.startswith(open_to):
                self.assertTrue(takes(type, value), name)
                continue
            self.assertEqual(takes(type, value), not schemas.faults(schema, value), name)

    def test_s4_1_hello_result(self) -> None:
        """§4.1: the result; members that nobody knows are tolerated (F42)."""
        self.compare(
            contract.HelloResult, schemas.HELLO_RESULT, examples.RESULTS["agent.hello"], "$"
        )

    def test_s4_3_shutdown(self) -> None:
        """§4.3: agent.shutdown."""
        self.compare(contract.Shutdown, schemas.SHUTDOWN, examples.PARAMS["agent.shutdown"])

    def test_s4_6_probe_request(self) -> None:
        """§4.6: probe.request."""
        self.compare(contract.ProbeParams, schemas.PROBE_PARAMS, examples.PARAMS["probe.request"])

    def test_s4_8_config_update(self) -> None:
        """§4.8: config.update, every number of AgentConfig range checked."""
        self.compare(contract.ConfigUpdate, schemas.CONFIG_UPDATE, examples.PARAMS["config.update"])

    def test_s4_1_the_defaults_are_a_config(self) -> None:
        """The server's default instructions are an AgentConfig of F18's sources."""
        built = to_builtins(contract.DEFAULT_AGENT_CONFIG)
        self.assertEqual(schemas.faults(schemas.AGENT_CONFIG, built), [])
        self.assertEqual(
            [(one["kind"], one.get("path")) for one in built["log_sources"]],
            [("journald", None), ("docker", None), ("file", "/var/log/**/*.log")],
        )


class Narrower(SynchronousTestCase):
    """Where a ruling narrows a shape of the contract: good by the schema, refused all the same."""

    def test_f15_a_ts_without_an_offset_is_refused(self) -> None:
        """F15: an offset is part of a time, and leap seconds and impossible days are none."""
        for ts in ("2026-08-09T06:30:00", "2026-02-30T00:00:00Z", "2026-08-09T25:00:00Z"):
            self.assertEqual(push_code(examples.push(1, ts=ts)), -32602, ts)

    def test_f31_a_seq_is_below_2_to_the_63(self) -> None:
        """F31: 2**63 - 1 is a seq, 2**63 is none."""
        self.assertIsNone(push_code(examples.push(2**63 - 1)))
        self.assertEqual(push_code(examples.push(2**63)), -32602)

    def test_f32_sources_have_no_control_characters(self) -> None:
        """F32: percent-encoded bytes and any other text pass, control characters do not."""
        for source in ("file:/a%01b", "file:/å 日本", "docker:x y", "custom:\u200b"):
            self.assertIsNone(push_code(examples.push(1, source=source)), source)
        for source in ("file:/a\tb", "file:/a\nb", "custom:\x00", "docker:\x7f", "journald\n"):
            self.assertEqual(push_code(examples.push(1, source=source)), -32602, repr(source))

    def test_f12_the_index_gives_the_seq(self) -> None:
        """F12: entries[i].seq is seq_start + i, else the batch is refused whole."""
        for seqs in ((2,), (1, 3), (1, 1), (2, 1), (1, 2, 4)):
            entries = [examples.ENTRY | {"seq": seq} for seq in seqs]
            self.assertEqual(push_code({"seq_start": 1, "entries": entries}), -32602, seqs)
        self.assertIsNone(push_code(examples.push(1, 3)))
