"""Commands: answered by the origin, once, and their effects carried out once."""

from __future__ import annotations

from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import (
    Accepted,
    Command,
    Invoke,
    Notify,
    Rejected,
    RequestApproval,
    Result,
    Value,
)
from cortextx.errors import SessionRefused
from cortextx.interaction import data
from cortextx.interaction.data import CommandResolved, Done, Error
from cortextx.interaction.faults import Code
from cortextx.interaction.master.effects import Effect, MemoryEffects, attempted, digest_of, ended
from cortextx.interaction.master.events import CommandLost, Event
from tests.interaction.master.script import Script

ASKED = RequestApproval("rm", Raw(b'{"path":"/x"}'))
INVOKE = Invoke("send", Raw(b'{"to":"bob","text":"hi"}'))


class Asking:
    """A script with a run under way."""

    def __init__(self, effects: MemoryEffects | None = None) -> None:
        self.script = Script(effects=effects)
        self.key, self.wire = self.script.begin()
        self.request = self.script.input(self.key)
        self.script.say(data.Accepted(), self.wire, self.request, "run", seq=1)
        self.script.events(self.key)

    def ask(
        self, command: Command = ASKED, command_id: str = "c1", effect_id: str | None = None
    ) -> list[Event]:
        """The slave asks; what the application hears."""
        content = data.Command(command, effect_id)
        self.script.say(content, self.wire, self.request, "run", command_id)
        return self.script.events(self.key)

    def answer(self, command_id: str = "c1", result: Result | None = None) -> None:
        """The application answers."""
        machine = self.script.machine
        self.script.do(machine.answer(self.key, command_id, result or Accepted()))

    @property
    def answers(self) -> list[Result]:
        """The results that were sent on this connection."""
        found = [data.read(frame) for frame in self.script.sent("command_result")]
        return [each.result for each in found if isinstance(each, data.CommandResult)]


class CommandTests(SynchronousTestCase):
    def test_an_answer_carries_the_commands_ids(self) -> None:
        """v2: one command_result for a command_id, with the ids of its run."""
        asking = Asking()
        [event] = asking.ask()
        self.assertEqual((event.command_id, event.is_own, event.effect), ("c1", True, "none"))
        asking.answer()
        ids = asking.script.sent("command_result")[0].correlation
        self.assertEqual(ids.ids[1:], (asking.wire, asking.request, "run", "c1"))
        resolved = CommandResolved("c1", None, "accepted")
        asking.script.say(resolved, asking.wire, asking.request, "run", seq=2)
        self.assertEqual(asking.script.outcomes("c1"), [resolved])

    def test_a_command_is_answered_once(self) -> None:
        """B13: a second answer is a mistake of the application's, and is not sent."""
        asking = Asking()
        asking.ask()
        asking.answer()
        self.assertRaises(SessionRefused, asking.answer, "c1", Rejected("no"))
        self.assertEqual(asking.answers, [Accepted()])

    def test_a_repeated_command_is_shown_once_and_answered_again(self) -> None:
        """I11: it keeps its ids; the answer that may be lost is given once more."""
        asking = Asking()
        self.assertEqual(len(asking.ask()), 1)
        self.assertEqual(asking.ask(), [])
        asking.answer()
        self.assertEqual(asking.ask(), [])
        self.assertEqual(asking.answers, [Accepted(), Accepted()])

    def test_a_lost_connection_takes_its_commands_with_it(self) -> None:
        """I11: they failed closed; the application is told, and can answer no more."""
        asking = Asking()
        asking.ask()
        asking.script.lose()
        self.assertIn(CommandLost("c1"), asking.script.contents(asking.key))
        self.assertRaises(SessionRefused, asking.answer)

    def test_an_answer_that_was_on_its_way_is_told_to_be_lost(self) -> None:
        """I11: nobody knows whether it arrived."""
        asking = Asking()
        asking.ask()
        asking.answer()
        asking.script.lose()
        [outcome] = asking.script.outcomes("c1")
        assert isinstance(outcome, Error)
        self.assertEqual(outcome.code, "origin_lost")

    def test_a_run_that_is_over_takes_its_commands_with_it(self) -> None:
        """B10: an approval dies with its run."""
        asking = Asking()
        asking.ask()
        script = asking.script
        script.say(Done("cancelled"), asking.wire, asking.request, "run", seq=2)
        self.assertIn(CommandLost("c1"), script.contents(asking.key))
        self.assertRaises(SessionRefused, asking.answer)

    def test_a_refused_answer_is_told(self) -> None:
        """I31: forbidden or command_conflict answers the answer."""
        asking = Asking()
        asking.ask()
        asking.answer()
        asking.script.refuse(Code.COMMAND_CONFLICT, asking.wire, asking.request, "run", "c1")
        self.assertEqual(asking.script.outcomes("c1"), [Error("command_conflict", "no", False)])

    def test_a_notice_wants_no_answer(self) -> None:
        """v1 commands: notify tells, and is not open."""
        asking = Asking()
        self.assertEqual(len(asking.ask(Notify("info", "x"))), 1)
        self.assertRaises(SessionRefused, asking.answer)

    def test_more_commands_than_the_slave_said_are_rejected(self) -> None:
        """I16: max_pending_commands bounds what we hold as well."""
        asking = Asking()
        for n in range(17):
            asking.ask(command_id=f"c{n}")
        self.assertEqual(asking.answers, [Rejected("too many commands are open")])


class EffectTests(SynchronousTestCase):
    def test_a_known_effect_is_answered_from_the_record(self) -> None:
        """v2: a side effect is not executed twice for one effect_id (I11)."""
        asking = Asking()
        [event] = asking.ask(INVOKE, "c1", "e1")
        self.assertEqual(event.effect, "new")
        sent = Value(Raw(b'{"id":7}'))
        asking.script.machine.effects.note(ended("e1", INVOKE, sent))
        asking.answer("c1", sent)
        self.assertEqual(asking.ask(INVOKE, "c2", "e1"), [])
        self.assertEqual(asking.answers, [sent, sent])

    def test_the_order_of_members_makes_no_other_effect(self) -> None:
        """The content is compared, not its text."""
        turned = Invoke("send", Raw(b'{"text": "hi", "to": "bob"}'))
        self.assertEqual(digest_of(INVOKE), digest_of(turned))

    def test_another_content_under_a_known_id_is_a_conflict(self) -> None:
        """v2: reuse of effect_id with different content is a protocol conflict."""
        effects = MemoryEffects()
        effects.note(ended("e1", INVOKE, Accepted()))
        asking = Asking(effects)
        self.assertEqual(asking.ask(Invoke("send", Raw(b"{}")), "c1", "e1"), [])
        self.assertEqual(asking.answers, [Rejected("effect_conflict")])

    def test_what_may_have_happened_is_shown_as_unknown(self) -> None:
        """B43: after a crash in the attempt it is not sent blindly."""
        effects = MemoryEffects()
        effects.note(Effect(effect_id="e1", digest=digest_of(INVOKE), state="unknown"))
        [event] = Asking(effects).ask(INVOKE, "c1", "e1")
        self.assertEqual(event.effect, "unknown")

    def test_an_effect_that_is_under_way_answers_the_repeat_too(self) -> None:
        """One attempt, two commands: its result is the answer to both."""
        asking = Asking()
        asking.ask(INVOKE, "c1", "e1")
        asking.script.machine.effects.note(attempted("e1", INVOKE))
        self.assertEqual(asking.ask(INVOKE, "c2", "e1"), [])
        asking.answer("c1")
        script = asking.script
        script.do(script.machine.effect_ended("e1", Accepted(), "c1"))
        self.assertEqual(asking.answers, [Accepted(), Accepted()])

    def test_an_effect_is_judged_when_the_application_hears_of_it(self) -> None:
        """v2: two commands for one effect that wait together are one effect still."""
        asking = Asking()
        script = asking.script
        for command_id in ("c1", "c2"):
            content = data.Command(INVOKE, "e1")
            script.say(content, asking.wire, asking.request, "run", command_id)
        first = script.take(asking.key)
        assert first is not None
        self.assertEqual((first.command_id, first.effect), ("c1", "new"))
        script.machine.effects.note(ended("e1", INVOKE, Accepted()))
        asking.answer("c1")
        self.assertEqual(script.events(asking.key), [])
        self.assertEqual(asking.answers, [Accepted(), Accepted()])

    def test_a_command_that_was_lost_while_it_waited_is_not_acted_on(self) -> None:
        """B10, I11: it failed closed; an effect of it now would be nobody's."""
        asking = Asking()
        script = asking.script
        content = data.Command(INVOKE, "e1")
        script.say(content, asking.wire, asking.request, "run", "c1")
        script.lose()
        self.assertNotIn(content, script.contents(asking.key))

    def test_the_record_forgets_the_oldest_that_ended_only(self) -> None:
        """An open effect is never forgotten, whatever comes after it."""
        effects = MemoryEffects(max_effects=3)
        effects.note(attempted("open", INVOKE))
        for n in range(5):
            effects.note(ended(f"e{n}", INVOKE, Accepted()))
        self.assertEqual([e.effect_id for e in effects.effects], ["open", "e3", "e4"])
