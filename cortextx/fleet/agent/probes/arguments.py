"""The arguments of the probes for people: their types, defaults and bounds (PURE, F44)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

from cortextx.fleet.agent.probes.catalogue import HOST, PATH, UNIT, Probe

_FORMS = {
    PATH: "an absolute path",
    HOST: "a host's name or address",
    UNIT: "the name of a unit",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: `form` says in words what it may be, `default` what it is where it is
    not given (None: nothing), unless it is `needed`."""

    name: str
    form: str
    needed: bool
    default: Any = None

    def __str__(self) -> str:
        if self.needed:
            return f"{self.name}: {self.form}; needed"
        end = "optional" if self.default is None else f"default {self.default}"
        return f"{self.name}: {self.form}; {end}"


def arguments_of(probe: Probe) -> list[Argument]:
    """The arguments that a probe takes, in the order of their declaration."""
    shape = inspect.type_info(probe.args)
    assert isinstance(shape, inspect.StructType)
    return [
        Argument(
            field.encode_name,
            _form(field.type),
            field.required,
            None if field.default is msgspec.NODEFAULT else field.default,
        )
        for field in shape.fields
    ]


def _form(shape: inspect.Type) -> str:
    members = shape.types if isinstance(shape, inspect.UnionType) else (shape,)
    return " or ".join(_of_one(each) for each in members if not isinstance(each, inspect.NoneType))


def _of_one(shape: inspect.Type) -> str:
    match shape:
        case inspect.IntType(ge=least, le=most):
            return f"{least} to {most}"
        case inspect.LiteralType(values=values):
            return " or ".join(map(str, values))
        case inspect.StrType(pattern=pattern) if pattern in _FORMS:
            return _FORMS[pattern]
        case inspect.StrType(max_length=most):
            return f"a text of at most {most} characters"
    return "a value"
