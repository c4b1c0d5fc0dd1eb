"""`cortextx chat` against a real slave, through pipes and at real terminals."""

from __future__ import annotations

import json
import os
import signal
import termios
import time
from typing import Any

from twisted.trial.unittest import TestCase

from tests.integration.chats import Slave, seqs, texts
from tests.integration.terminals import Terminal


class PipeTests(TestCase):
    timeout = 120

    def setUp(self) -> None:
        self.slave = Slave(self).start()

    def rows(self, *args: str, stdin: bytes, code: int = 0) -> list[dict[str, Any]]:
        done = self.slave.call("chat", "--json", *args, stdin=stdin)
        self.assertEqual((done.returncode, done.stderr), (code, b""), done.stdout)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_all_of_stdin_is_one_input_and_stdout_gets_the_answer_alone(self) -> None:
        done = self.slave.call("chat", stdin="one\ntwo é".encode())
        self.assertEqual(
            (done.returncode, done.stdout, done.stderr), (0, "one\ntwo é\n".encode(), b"")
        )

    def test_each_event_is_a_line_of_json(self) -> None:
        rows = self.rows(stdin=b"hi there\n")
        kinds = [row["event"] for row in rows if row["event"] != "delta"]
        expected = ["attached", "accepted", "message", "started", "message", "done"]
        self.assertEqual(kinds, expected)
        self.assertEqual(seqs(rows), [1, 2, 3, 4, 5])
        self.assertEqual((texts(rows, "user"), texts(rows)), (["hi there"], ["hi there"]))

    def test_each_line_is_an_input_and_they_run_in_their_order(self) -> None:
        # I29
        rows = self.rows(stdin=b'one\n\n{"input": "two\\nlines"}\nthree\n')
        self.assertEqual(texts(rows), ["one", "two\nlines", "three"])

    def test_a_session_begun_before_can_be_shown_again(self) -> None:
        self.slave.call("chat", "--session", "n", stdin=b"first")
        rows = self.rows("--session", "n", "--after", "0", stdin=b"second\n")
        self.assertEqual(texts(rows), ["first", "second"])
        self.assertEqual([row.get("replay", False) for row in rows if "seq" in row][:6],
                         [True] * 5 + [False])  # fmt: skip
        rows = self.rows("--session", "n", stdin=b"third\n")
        self.assertEqual(texts(rows), ["third"])

    def test_an_approval_is_answered_by_its_id(self) -> None:
        chat = self.slave.chat("asks")
        for answer, expected in (({}, "please"), ({"reject": "not now"}, "not now")):
            chat.say("please")
            asked = chat.until("command")
            self.assertEqual(asked["data"]["command"]["type"], "request_approval")
            chat.say({"answer": asked["command_id"], **answer})
            chat.until("done")
            self.assertIn(expected, texts(chat.rows)[-1])
        self.assertEqual(chat.close(), 0)

    def test_nobody_approves_once_stdin_has_ended(self) -> None:
        done = self.slave.call("chat", "asks", stdin=b"please")
        self.assertEqual(done.returncode, 0)
        self.assertIn(b"nobody is there to be asked", done.stdout)
        self.assertIn(b"may echo run?", done.stderr)
        rows = self.rows("asks", stdin=b"please\n")
        self.assertIn("nobody is there to be asked", texts(rows)[-1])

    def test_a_run_is_cancelled_and_the_code_says_so(self) -> None:
        chat = self.slave.chat("slow")
        chat.say("a b c d e f g h i j k l m n o p")
        chat.until("delta")
        began = time.monotonic()
        chat.say({"cancel": True})
        self.assertEqual(chat.until("done")["data"]["status"], "cancelled")
        self.assertLess(time.monotonic() - began, 1.0)
        chat.say({"status": True})
        self.assertIn("idle", chat.until("note")["message"])
        self.assertEqual(chat.close(), 1)

    def test_orders_that_are_none_are_refused_and_the_rest_goes_on(self) -> None:
        chat = self.slave.chat()
        for bad in ("{", {"input": 1}, {"inptu": "x"}, {}, {"answer": "c9"}, {"cancel": True}):
            chat.say(bad)
            chat.until("refused")
        chat.say("hi")
        chat.until("done")
        self.assertEqual(chat.close(), 1)

    def test_an_observer_sees_the_facts_and_neither_deltas_nor_questions(self) -> None:
        # B14
        watching = self.slave.chat("asks", "--observe")
        watching.until("attached")
        chat = self.slave.chat("asks")
        chat.say("please")
        asked = chat.until("command")
        chat.say({"answer": asked["command_id"]})
        chat.until("done")
        watching.until("done")
        self.assertEqual(seqs(watching.rows), seqs(chat.rows))
        self.assertEqual({row["event"] for row in watching.rows} & {"delta", "command"}, set())
        self.assertEqual(chat.close(), 0)
        watching.process.send_signal(signal.SIGINT)
        self.assertIn(watching.process.wait(10), (0, 130))

    def test_it_comes_back_when_the_slave_does(self) -> None:
        chat = self.slave.chat("slow")
        chat.say("a b c d e f g h i j k l m n o p")
        chat.until("delta")
        self.slave.kill()
        chat.until("disconnected")
        self.slave.start()
        done = chat.until("done")
        self.assertEqual((done["data"]["status"], done["own"]), ("interrupted", True))
        chat.say("again")
        chat.until("done")
        found = seqs(chat.rows)
        self.assertEqual(found, list(range(1, found[-1] + 1)))
        self.assertEqual(chat.close(), 1)

    def test_what_does_not_work_says_what_to_do(self) -> None:
        for args, code, message, hint in (
            (("nobody",), 4, b"no such agent", b"[agents.NAME]"),
            (("a/b",), 2, b"nothing can be called", b"letters"),
            (("--session", "index"), 2, b"nothing can be called", b"letters"),
            (("--after", "99"), 1, b"cursor_ahead", b"--after 0"),
            ((), 2, b"nothing was said", b"echo hi"),
        ):
            done = self.slave.call("chat", *args)
            self.assertEqual((args, done.returncode), (args, code), done.stderr)
            self.assertIn(message, done.stderr)
            self.assertIn(hint, done.stderr)

    def test_without_a_slave_it_says_how_to_start_one(self) -> None:
        self.slave.kill()
        done = self.slave.call("chat", stdin=b"hi")
        self.assertEqual(done.returncode, 3)
        self.assertIn(
            f"twistd -n cortex-slave --state-dir {self.slave.state}".encode(), done.stderr
        )

    def test_control_c_cancels_the_run_and_a_second_one_leaves(self) -> None:
        for times, code in ((1, 1), (2, 130)):
            chat = self.slave.chat("slow")
            chat.say("a b c d e f g h i j k l m n o p")
            chat.until("delta")
            for _ in range(times):
                chat.process.send_signal(signal.SIGINT)
                if times == 2:
                    time.sleep(0.05)
            if times == 1:
                self.assertEqual(chat.until("done")["data"]["status"], "cancelled")
                self.assertEqual(chat.close(), code)
            else:
                self.assertIn(chat.process.wait(10), (1, code))

    def test_any_number_of_lines_is_read_as_they_can_be_said(self) -> None:
        done = self.slave.call("chat", "--json", stdin=b"word\n" * 500, seconds=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(texts(rows), ["word"] * 500)
        self.assertEqual([row for row in rows if row["event"] == "refused"], [])

    def test_bytes_that_are_no_text_and_too_much_of_it(self) -> None:
        # I40
        done = self.slave.call("chat", stdin=b"caf\xe9")
        self.assertEqual((done.returncode, done.stdout), (0, "caf\ufffd\n".encode()))
        for size in (300_000, 3_000_000):
            done = self.slave.call("chat", stdin=b"x" * size)
            self.assertIn(done.returncode, (1, 2))
            self.assertNotIn(b"Traceback", done.stderr)
            done = self.slave.call("chat", "--json", stdin=b"x" * size + b"\nhi\n")
            self.assertEqual(done.returncode, 1)
            rows = [json.loads(line) for line in done.stdout.splitlines()]
            self.assertEqual(texts(rows), ["hi"])
            self.assertEqual([r["event"] for r in rows].count("refused"), 1)

    def test_a_temporary_session_leaves_no_files(self) -> None:
        # I18
        rows = self.rows("--temp", stdin=b"hi\n")
        self.assertEqual(texts(rows), ["hi"])
        self.assertEqual(self.slave.call("session", "list", "--json").stdout, b"")


class TerminalTests(TestCase):
    timeout = 180

    def setUp(self) -> None:
        self.slave = Slave(self).start()

    def chat(self, *args: str, prompt: str = "echo/default>") -> Terminal:
        terminal = self.slave.terminal("chat", *args)
        terminal.expect(prompt)
        return terminal

    def test_words_are_answered_and_control_d_leaves(self) -> None:
        chat = self.chat()
        chat.line("hello big world")
        chat.expect("\nhello big world\n")
        chat.send("\x04")
        self.assertEqual(chat.wait(), 0)

    def test_two_terminals_of_one_session(self) -> None:
        """One types, both see the facts; only the first sees deltas and is asked; both come
        back after kill -9 of the slave, with the run ended as interrupted (B14, B05)."""
        first = self.chat("slow", prompt="slow/default>")
        second = self.chat("slow", prompt="slow/default>")
        first.line("one two three four five six")
        second.expect("user: one two three four five six")
        first.expect("one")
        first.expect("\none two three four five six\n")
        second.expect("\none two three four five six\n")
        between = second.text.partition("user: one two three four five six")[2]
        self.assertEqual(between.count("two"), 1, between)
        first.line("a b c d e f g h i j k l m n")
        second.expect("user: a b c d")
        first.expect("b")
        self.slave.kill()
        for each in (first, second):
            each.expect("the slave went away")
        self.slave.start()
        for each in (first, second):
            each.expect("the slave is back")
            each.expect("the run ended as interrupted")
        second.line("x")
        first.expect("user: x")
        first.expect("\nx\n")
        for each in (first, second):
            each.send("\x04")
            self.assertEqual(each.wait(), 0)
        done = self.slave.call("session", "verify", "slow/default")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_only_the_origin_is_asked(self) -> None:
        first = self.chat("asks", prompt="asks/default>")
        second = self.chat("asks", prompt="asks/default>")
        second.send("half a thought")
        first.line("please")
        first.expect("may echo run?")
        first.expect("answer>")
        second.expect("user: please")
        self.assertNotIn("may echo run", second.quiet(0.5))
        first.line("perhaps")
        first.expect("please answer")
        first.line("y")
        first.expect("\nplease\n")
        second.expect("request accepted")
        second.expect("\nplease\n")
        history = (self.slave.root / "own" / "cortextx" / "chat_history").read_text()
        self.assertIn("+please\n", history)
        self.assertNotIn("+y\n", history)

    def test_all_calls_of_a_tool_in_a_run_are_for_that_run(self) -> None:
        chat = self.chat("asks", prompt="asks/default>")
        for _ in range(2):
            chat.line("please")
            chat.expect("may echo run?")
            chat.expect("answer>")
            chat.line("a")
            chat.expect("\nplease\n")
            chat.expect("asks/default>")

    def test_control_c_cancels_the_run_and_a_second_one_leaves(self) -> None:
        chat = self.chat("slow", prompt="slow/default>")
        for wait in (0.0, 0.7):
            chat.line("a b c d e f g h i j k l m n")
            chat.quiet(wait)
            began = time.monotonic()
            chat.send("\x03")
            chat.expect("the run ended as cancelled")
            self.assertLess(time.monotonic() - began, 1.5)
        chat.send("\x03")
        chat.expect("once more leaves")
        chat.send("\x03")
        self.assertEqual(chat.wait(), 0)

    def test_keys_count_whenever_they_are_typed(self) -> None:
        """No key is lost while something is printed, or between two lines."""
        chat = self.chat()
        for number in range(20):
            chat.line(f"n{number}")
            chat.quiet(0.01 * (number % 3))
        chat.expect("\nn19\n")
        chat.send("\x04")
        self.assertEqual(chat.wait(), 0)
        shown = self.slave.call("session", "export", "default", "--form", "messages").stdout
        said = [json.loads(line) for line in shown.splitlines()]
        self.assertEqual(
            [each["content"] for each in said if each["role"] == "user"],
            [f"n{number}" for number in range(20)],
        )

    def test_several_lines_are_one_input(self) -> None:
        chat = self.chat()
        chat.send("one\x1b\r")
        chat.send("two\\\r")
        chat.line("three")
        chat.expect("\none\ntwo\n")
        chat.expect("three")
        chat.quiet(1.0)
        self.assertEqual(
            json.loads(self.slave.call("session", "show", "default", "--json").stdout)["latest"],
            "one\ntwo\nthree",
        )

    def test_commands(self) -> None:
        chat = self.chat()
        chat.line("hello")
        chat.expect("\nhello\n")
        chat.quiet(0.5)  # the run's end comes behind its words
        chat.line("/status")
        chat.expect("idle; 5 events")
        chat.line("/attach notes")
        chat.expect("notes>")
        chat.line("in notes")
        chat.expect("\nin notes\n")
        chat.line("/sessions")
        listed = chat.quiet(1.0)
        self.assertIn("* echo/notes ", listed)
        self.assertIn("  echo/default ", listed)
        chat.line("/attach default")
        chat.expect("user: hello\nhello\n")
        chat.line("/resume 3")
        self.assertNotIn("user: hello", chat.expect("\nhello\n"))
        path = str(self.slave.root / "out.md")
        chat.line(f"/export {path}")
        chat.expect("written to")
        with open(path) as file:
            self.assertTrue(file.read().startswith("**user**\n\nhello"))
        chat.line("/attach nobody/x")
        chat.expect("no such agent")
        chat.line("/quit")
        self.assertEqual(chat.wait(), 0)

    def test_an_observer_sees_and_cannot_speak(self) -> None:
        chat = self.chat("--observe")
        self.slave.call("chat", stdin=b"hello")
        chat.expect("user: hello\n")
        chat.expect("\nhello\n")
        chat.line("hi")
        chat.expect("only observes")
        chat.send("\x04")
        self.assertEqual(chat.wait(), 0)

    def test_controls_of_others_are_made_visible(self) -> None:
        # S4
        chat = self.chat()
        self.slave.call("chat", stdin=b"\x1b]0;owned\x07red")
        chat.expect("user: \\e]0;owned\\x07red")
        self.assertNotIn(b"\x1b]0;owned", chat.raw)

    def test_a_signal_leaves_the_terminal_as_it_was(self) -> None:
        terminal = self.slave.terminal("chat")
        before = termios.tcgetattr(terminal.master)
        terminal.expect("echo/default>")
        self.assertNotEqual(termios.tcgetattr(terminal.master)[3], before[3])
        os.kill(terminal.process.pid, signal.SIGTERM)
        self.assertNotEqual(terminal.wait(), 0)
        self.assertEqual(termios.tcgetattr(terminal.master)[3], before[3])
