"""A driver is asked only for what its hello declares."""

from __future__ import annotations

from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.channel import effects, frames, values
from cortextx.channel.abilities import (
    ACTIONS,
    CAPABILITIES,
    Abilities,
    action_flags,
    capability_flags,
)
from cortextx.core import exchange

TARGET = values.MessageTarget("irc", "#room")
EFFECTS: list[effects.Effect] = [
    effects.Typing(True),
    effects.Preview("p"),
    effects.React("m", "+", False),
    effects.Edit("m", values.Body("e")),
    effects.Delete("m"),
    effects.MarkRead("m"),
    effects.Pin("m"),
    effects.Unpin("m"),
    effects.Redact("m"),
]


def able(*capabilities: str) -> Abilities:
    return Abilities(frozenset(capabilities))


class AbilityTests(SynchronousTestCase):
    def test_the_names_are_the_contracts(self) -> None:
        self.assertEqual(
            ACTIONS,
            (
                "typing", "preview", "reaction", "edit", "delete",
                "mark_read", "pin", "unpin", "redact",
            ),
        )  # fmt: skip
        self.assertEqual(len(CAPABILITIES), 23)
        self.assertEqual((CAPABILITIES[0], CAPABILITIES[-1]), ("receive", "webhook"))

    def test_a_hello_declares_what_is_true_and_known(self) -> None:
        line = (
            b'{"abi":"cortexfs.channel.socket/v1","frame":{"type":"hello","request_id":"r",'
            b'"channel":"irc","capabilities":{"send":true,"commands":false,"zz":[]},'
            b'"actions":{"pin":true,"typing":false,"dance":true}}}\n'
        )
        hello = frames.decode_line(line, frames.FROM_DRIVER)
        assert isinstance(hello, frames.Hello)
        self.assertEqual(hello.abilities, Abilities(frozenset({"send"}), frozenset({"pin"})))

    def test_names_become_flags_and_back(self) -> None:
        abilities = Abilities(frozenset({"commands", "receive"}), frozenset({"edit"}))
        capabilities = capability_flags(abilities.capabilities)
        self.assertEqual(list(capabilities), ["receive", "commands"])
        actions = action_flags(abilities.actions)
        self.assertEqual(frames.Hello("r", "c", capabilities, actions).abilities, abilities)

    def test_an_effect_needs_its_action(self) -> None:
        self.assertEqual(len(EFFECTS), len(ACTIONS))
        for effect, name in zip(EFFECTS, ACTIONS, strict=True):
            self.assertEqual(Abilities().missing_for_effect(effect), f"actions.{name}")
            others = Abilities(actions=frozenset(ACTIONS) - {name})
            self.assertEqual(others.missing_for_effect(effect), f"actions.{name}")
            self.assertIsNone(Abilities(actions=frozenset({name})).missing_for_effect(effect))

    def test_a_command_needs_commands_and_some_need_more(self) -> None:
        choices = [exchange.Choice("a", "A")]
        cases: list[tuple[exchange.ChannelCommand, list[str]]] = [
            (exchange.RequestInput("?"), ["commands"]),
            (exchange.RequestApproval("sh", Raw(b"{}")), ["commands"]),
            (exchange.Notify("info", "t"), ["commands"]),
            (exchange.Invoke("n", Raw(b"null")), ["commands", "tool_control"]),
            (exchange.RequestChoice("?", choices), ["commands", "choices"]),
            (exchange.RequestChoice("?", choices, True), ["commands", "choices", "multi_choice"]),
        ]
        for command, needed in cases:
            self.assertIsNone(able(*needed).missing_for_command(command))
            for name in needed:
                rest = able(*(other for other in CAPABILITIES if other != name))
                self.assertEqual(rest.missing_for_command(command), f"capabilities.{name}")

    def test_a_controllers_action_needs_what_it_does(self) -> None:
        message = values.OutboundMessage(TARGET, values.Body("x"))
        send = effects.Send(message)
        pin = effects.ControlEffect(TARGET, effects.Pin("m"))
        ask = effects.ControlCommand("s", "c", exchange.RequestInput("?"))
        nothing = Abilities()
        self.assertEqual(nothing.missing_for_action(send), "capabilities.send")
        self.assertEqual(nothing.missing_for_action(pin), "actions.pin")
        self.assertEqual(nothing.missing_for_action(ask), "capabilities.commands")
        everything = Abilities(frozenset(CAPABILITIES), frozenset(ACTIONS))
        for action in (send, pin, ask):
            self.assertIsNone(everything.missing_for_action(action))
