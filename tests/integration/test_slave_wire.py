"""The slave as a process, with clients that know nothing but sockets and JSON."""

from __future__ import annotations

import contextlib
import json
import time

from tests.integration.slave_harness import (
    SLAVE,
    Line,
    SlaveCase,
    Stream,
    an_input,
    ask,
    frame,
    framed,
    kind,
    value,
)


class Version1(SlaveCase):
    def test_each_form(self) -> None:
        """framed, flat and both, as the setting says (I6)."""
        for form, members in (
            ("both", {"abi", "payload", "type"}),
            ("framed", {"abi", "payload"}),
            ("flat", {"type"}),
        ):
            self.house.write_config(f'[slave]\nv1_form = "{form}"\n')
            path = self.house.start()
            for request in ({"op": "send", "input": "hi"}, an_input(f"r-{form}", "hi")):
                lines = ask(path, request)
                self.assertEqual(lines[-1].keys() & {"abi", "payload", "type"}, members)
                last = lines[-1] if "type" in lines[-1] else value(lines[-1])
                self.assertEqual((last["type"], last["status"]), ("done", "completed"))
            self.house.stop(SLAVE)

    def test_an_approval_is_answered_on_the_same_connection(self) -> None:
        """The write half stays open for it, and the run goes on with the answer."""
        self.house.write_config('[agents.echo]\nruntime = "echo"\napprove = true\n')
        path = self.house.start()
        for verdict, words in (
            ({"type": "accepted"}, "please"),
            ({"type": "rejected", "reason": "not today"}, "not today"),
        ):
            with Line(path) as line:
                line.send(an_input(f"r-{words}", "please"))
                asked = value(line.until(lambda each: value(each)["type"] == "command")[-1])
                self.assertEqual(asked["command"]["tool"], "echo")
                line.send(
                    framed(
                        "command_result", request_id=f"r-{words}", session="default",
                        command_id=asked["command_id"], result=verdict,
                    )
                )  # fmt: skip
                said = [value(each) for each in line.rest()]
            self.assertIn(words, said[-2]["text"])
            self.assertEqual(said[-1]["type"], "done")

    def test_half_close_and_the_answer_still_comes(self) -> None:
        """A client that writes no more has its stream; its approval fails closed (I35)."""
        self.house.write_config('[agents.echo]\nruntime = "echo"\napprove = true\n')
        path = self.house.start()
        with Line(path) as line:
            line.send({"op": "send", "input": "hi"})
            line.half_close()
            lines = line.rest()
        self.assertIn("origin_lost", lines[-2]["content"])
        self.assertEqual(lines[-1]["type"], "done")

    def test_resume_goes_on_where_a_cut_was(self) -> None:
        """From the last session_seq that came (I26), with the same run."""
        self.house.write_config('[agents.echo]\nruntime = "echo"\ndelay = 0.1\n')
        path = self.house.start()
        with Line(path) as line:
            line.send({"op": "send", "input": "a b c d e"})
            last = line.until(lambda each: each["type"] == "start")[-1]["session_seq"]
        rest = ask(path, {"op": "resume", "after": str(last)})
        self.assertEqual([each["session_seq"] for each in rest], [last + 1, last + 2])
        self.assertEqual(rest[-1]["status"], "completed")

    def test_the_same_request_after_kill_9_runs_nothing_B17_B25(self) -> None:
        """The run that was cut has one end, `interrupted`, and an identical retry reads it."""
        self.house.write_config('[agents.echo]\nruntime = "echo"\ndelay = 5.0\n')
        path = self.house.start()
        with Line(path) as line:
            line.send(an_input("r1", "one two"))
            line.until(lambda each: value(each)["type"] == "started")
            self.house.kill()
        path = self.house.start()
        lines = ask(path, an_input("r1", "one two"))
        self.assertEqual([value(each)["type"] for each in lines][:2], ["accepted", "started"])
        kinds = [kind(fact) for fact in self.house.facts()]
        self.assertEqual((kinds.count("started"), kinds.count("done")), (1, 1))
        self.assertEqual(self.house.facts()[-1]["event"]["data"]["status"], "interrupted")

    def test_working_directories_I27(self) -> None:
        """ENOENT where there is none, EACCES outside the agent's root by real path."""
        inside, outside = self.house.root / "in", self.house.root / "out"
        inside.mkdir()
        outside.mkdir()
        (inside / "link").symlink_to(outside)
        self.house.write_config(f'[agents.echo]\nruntime = "echo"\nroot = "{inside}"\n')
        path = self.house.start()
        for cwd, code in (
            (inside, None),
            (inside / "none", "ENOENT"),
            (outside, "EACCES"),
            (inside / "link", "EACCES"),
        ):
            last = ask(path, {"op": "send", "input": "hi", "cwd": str(cwd)})[-1]
            self.assertEqual(last.get("code"), code, cwd)

    def test_faults_cost_their_connection_only(self) -> None:
        """Garbage, floods and half lines, and then a good request."""
        path = self.house.start()
        flood = b'{"op":"' + b"x" * 300_000
        for raw, codes in (
            (b"GET / HTTP/1.0\r\n\r\n", []),
            (b"{]\n", ["EINVAL"]),
            (b'{"op":"send"}\n', ["EINVAL"]),
            (b'{"op":"send","input":"\xff"}\n', ["EINVAL"]),
            (b'{"op":"send","input":"\\ud800"}\n', ["EINVAL"]),
            (flood, ["EMSGSIZE"]),
        ):
            with Line(path) as line:
                with contextlib.suppress(BrokenPipeError):
                    line.send(raw)
                said = []
                with contextlib.suppress(ConnectionResetError):
                    # What it did not read of a flood makes the end of the stream a reset.
                    said.extend(json.loads(each) for each in iter(line.line, None))
                self.assertEqual([each["code"] for each in said], codes, raw[:20])
        with Line(path) as line:
            line.send(b'{"op":')
        self.assertEqual(ask(path, {"op": "ping"}), [{"type": "pong"}])


class Version2(SlaveCase):
    def test_the_person_at_the_end_of_the_issue(self) -> None:
        """Two on a session: both see the facts, the origin alone has deltas; then kill -9 in
        the middle of a run, and both go on with nothing missing and the run interrupted."""
        self.house.write_config('[agents.echo]\nruntime = "echo"\ndelay = 0.05\n')
        path = self.house.start()
        one, two = Stream(path), Stream(path)
        self.assertEqual(one.welcome["event"]["data"]["max_attachments"], 64)
        self.assertEqual(kind(one.attach()), "attached")
        self.assertEqual(kind(two.attach()), "attached")
        one.input("r1", "hello you")
        mine, theirs = one.done("r1"), two.done("r1")
        self.assertEqual(
            [f["session_seq"] for f in mine if f["session_seq"]],
            [f["session_seq"] for f in theirs],
        )
        deltas = [f["event"]["data"]["text"] for f in mine if not f["event"].get("durable")]
        self.assertEqual(deltas, ["hello ", "you"])
        cursor = theirs[-1]["session_seq"]
        one.input("r2", "word " * 100)
        one.until(lambda f: f["event"]["data"].get("type") == "delta")
        self.house.kill()
        for line in (one, two):
            line.close()
        path = self.house.start()
        one, two = Stream(path), Stream(path)
        for stream in (one, two):
            attached = stream.attach(after=cursor)
            self.assertEqual(attached["event"]["data"]["replay_from"], cursor + 1)
        one.input("r2", "word " * 100)
        for stream in (two, one):
            replayed = stream.done("r2")
            seqs = [f["session_seq"] for f in replayed]
            self.assertEqual(sorted(set(seqs)), list(range(cursor + 1, max(seqs) + 1)))
            self.assertEqual(replayed[-1]["event"]["data"]["status"], "interrupted")

    def test_an_approval_is_the_origins_alone_B14(self) -> None:
        """Another attachment neither has the command nor can answer it."""
        self.house.write_config('[agents.echo]\nruntime = "echo"\napprove = true\n')
        path = self.house.start()
        one, two = Stream(path), Stream(path)
        one.attach()
        two.attach()
        one.input("r1", "hi")
        command = one.until(lambda f: kind(f) == "command")[-1]
        ids = list(command["correlation"].values())
        result = {
            "result": {"type": "accepted"},
            "effect_id": command["event"]["data"]["effect_id"],
        }
        two.send(frame("command_result", ids, result))
        refused = two.until(lambda f: kind(f) == "error")
        self.assertNotIn("command", [kind(f) for f in refused])
        self.assertEqual(refused[-1]["event"]["data"]["code"], "forbidden")
        one.send(frame("command_result", ids, result))
        self.assertEqual(one.done("r1")[-1]["event"]["data"]["status"], "completed")

    def test_cancel_within_a_second(self) -> None:
        """For echo and for a child process."""
        script = self.house.root / "sleep.sh"
        script.write_text("read -r request\ntrap '' TERM\nwhile :; do sleep 0.1; done\n")
        self.house.write_config(
            f"""
            [agents.echo]
            runtime = "echo"
            delay = 60
            [agents.sleeper]
            runtime = "exec"
            command = ["/bin/sh", "{script}"]
            """
        )
        path = self.house.start()
        for agent in ("echo", "sleeper"):
            stream = Stream(path)
            stream.attach(agent=agent)
            stream.input("r1", "sleep")
            run = stream.until(lambda f: kind(f) == "started")[-1]["correlation"]["run_id"]
            begun = time.monotonic()
            stream.send(frame("cancel", ["c", "a", "c1", run], {}))
            done = stream.done("r1")[-1]
            self.assertLess(time.monotonic() - begun, 1.0, agent)
            self.assertEqual(done["event"]["data"]["status"], "cancelled")
            stream.close()
