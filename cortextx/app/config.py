"""Settings from a TOML file, the environment and the command line, checked by type.

The command line wins over the environment, and that over the file. Whatever
is wrong is a ConfigError that names the file or variable, the field and what
was expected there. Nothing here imports Twisted: the command line uses it too.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from cortextx.core.forms import in_words
from cortextx.errors import ConfigError

T = TypeVar("T")
Path = tuple[str, ...]

STATE_DIR_VARIABLE = "CORTEXTX_STATE_DIR"
NO_SETTINGS = (STATE_DIR_VARIABLE, "CORTEXTX_LOG_FILE")
"""Variables of ours that are no settings: where all is kept, and what `up` tells a log."""
SYSTEM_STATE_DIR = "/var/lib/cortextx"
SOCKET_PATH_BYTES = 107
"""The longest path that a Unix socket's address can hold on Linux."""
LONGEST_SOCKET = "/run/admin.sock"
COMMAND_LINE = "command line"
MISSPELT = 0.87
"""How alike a variable's and a setting's names must be (0 to 1) to be taken for a slip."""

_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?(?P<field>\$[^`]*)`)?$", re.DOTALL)
_ONE_OF = re.compile(r"^Invalid (?:enum )?value (?P<found>.+)$", re.DOTALL)
_WORDS = {"1": True, "yes": True, "on": True, "0": False, "no": False, "off": False}
_INDEX = re.compile(r"\[(?:\d+|\.\.\.)\]")


def load(
    type: type[T],
    *,
    path: str | None = None,
    default_path: str | None = None,
    environ: Mapping[str, str] | None = None,
    prefix: str = "CORTEXTX_",
    overrides: Mapping[str, Any] | None = None,
    others: Callable[[], Sequence[Any]] = tuple,
    origins: dict[str, str] | None = None,
) -> T:
    """Build a `type` (a msgspec Struct or a dataclass) from all that was configured.

    `path` is a file that must exist; without one `default_path` is read if it is
    there. The setting `[server] url` is also the variable `<prefix>SERVER_URL`;
    lists there are a TOML array or words with commas between. A variable that
    looks like a setting of this type, or of one of `others`, with a slip in it is
    an error; what looks like none is left alone, for an orchestrator may set
    variables of any name. (The others are asked for only where a variable is not this
    type's own: an agent need not have a server's settings in memory.) Where a list of
    strings is wanted, a file may give one string. `overrides` holds what the command
    line gave, by name as `listen` or `server.url`; None means not given. `origins`, if
    given, is filled in for `blamed`: which settings came from elsewhere than the file.

    Raises ConfigError.
    """
    shape = inspect.type_info(type)
    values, where = _read(path, default_path)
    _refuse_unknown(shape, values, where)
    if environ is not None:
        _refuse_misspelt(environ, prefix, shape, others)
    _lists_of_one(shape, values)
    origin: dict[Path, str] = {}
    for field, leaf in _settings(shape):
        variable = prefix + "_".join(field).upper()
        if environ is not None and variable in environ:
            _put(values, field, _from_text(leaf, environ[variable]), where)
            origin[field] = variable
    known = dict(_settings(shape))
    for name, value in (overrides or {}).items():
        if value is None:
            continue
        field = tuple(name.split("."))
        if field not in known:
            raise ConfigError(COMMAND_LINE, name, "a setting that exists")
        if isinstance(value, str):
            value = _from_text(known[field], value)
        _put(values, field, value, where)
        origin[field] = COMMAND_LINE
    if origins is not None:
        origins |= {".".join(field): said_by for field, said_by in origin.items()}
    try:
        return msgspec.convert(values, type)
    except msgspec.ValidationError as error:
        raise _explained(error, origin, where, shape) from None


def blamed(error: ConfigError, origins: Mapping[str, str]) -> ConfigError:
    """The same error, of the variable or option that the setting came from, if one did.

    For checks that are made of what `load` answered and know of the file only.
    """
    said_by = origins.get(_INDEX.sub("", error.field))
    return error if said_by is None else ConfigError(said_by, error.field, error.expected)


def state_dir(option: str | None, environ: Mapping[str, str]) -> str:
    """The absolute path of the state directory: option, variable, or this user's own.

    Raises ConfigError if the sockets in it could not be bound for its length.
    """
    where, chosen = ("--state-dir", option)
    if chosen is None:
        where, chosen = (STATE_DIR_VARIABLE, environ.get(STATE_DIR_VARIABLE) or None)
    if chosen is None:
        where, chosen = ("state directory", _own_state_dir(environ))
    found = os.path.abspath(os.path.expanduser(chosen))
    room = SOCKET_PATH_BYTES - len(LONGEST_SOCKET)
    if len(os.fsencode(found)) > room:
        raise ConfigError(where, found, f"a path of at most {room} bytes (sockets live below it)")
    return found


def _own_state_dir(environ: Mapping[str, str]) -> str:
    if os.geteuid() == 0:
        return SYSTEM_STATE_DIR
    home = environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(home):
        return os.path.join(home, "cortextx")
    from platformdirs import user_state_dir

    return user_state_dir("cortextx", appauthor=False)


def _read(path: str | None, default_path: str | None) -> tuple[dict[str, Any], str]:
    where = path or default_path
    if where is None:
        return {}, "configuration"
    try:
        descriptor = os.open(where, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if where != os.devnull and not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError(where, "file", "a regular file")
            return tomllib.load(file), where
    except FileNotFoundError:
        if path is None:
            return {}, where
        raise ConfigError(where, "file", "a file that exists") from None
    except OSError as error:
        raise ConfigError(where, "file", f"a readable file ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(where, "file", f"TOML: {error}") from None
    except RecursionError:
        raise ConfigError(where, "file", "TOML that nests less deeply") from None


def _fields(shape: inspect.Type) -> dict[str, inspect.Type] | None:
    """The settings that a table of this shape may hold; None if it is no such table."""
    if isinstance(shape, inspect.StructType):
        names = {field.encode_name: field.type for field in shape.fields}
        if shape.tag_field is not None:
            names[shape.tag_field] = inspect.StrType()
        return names
    if isinstance(shape, inspect.DataclassType | inspect.TypedDictType):
        return {field.encode_name: field.type for field in shape.fields}
    return None


def _settings(shape: inspect.Type, above: Path = ()) -> Iterator[tuple[Path, inspect.Type]]:
    """Every setting that is no table, with its shape."""
    fields = _fields(shape)
    if fields is None:
        yield above, shape
        return
    for name, inner in fields.items():
        yield from _settings(inner, (*above, name))


def _members(shape: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(shape, inspect.UnionType):
        return tuple(shape.types)
    return (shape,)


def _refuse_unknown(shape: inspect.Type, value: Any, where: str, at: str = "") -> None:
    """Raise for the first key in `value` that `shape` has no setting for."""
    if isinstance(value, list):
        for member in _members(shape):
            if isinstance(member, inspect.ListType | inspect.VarTupleType):
                for index, item in enumerate(value):
                    _refuse_unknown(member.item_type, item, where, f"{at}[{index}]")
        return
    if not isinstance(value, dict):
        return
    fields = _fields_for(shape, value)
    if fields is None:
        return
    for key, item in value.items():
        field = f"{at}.{key}" if at else key
        if key not in fields:
            raise ConfigError(where, field, _instead(key, list(fields)))
        _refuse_unknown(fields[key], item, where, field)


def _fields_for(shape: inspect.Type, value: dict[str, Any]) -> dict[str, inspect.Type] | None:
    """As `_fields`, of the member of a union that the value's tag names."""
    tables = [member for member in _members(shape) if _fields(member) is not None]
    for member in tables:
        if isinstance(member, inspect.StructType) and member.tag_field is not None:
            if value.get(member.tag_field) == member.tag:
                return _fields(member)
        elif len(tables) == 1:
            return _fields(member)
    return None


def _refuse_misspelt(
    environ: Mapping[str, str],
    prefix: str,
    shape: inspect.Type,
    others: Callable[[], Sequence[Any]],
) -> None:
    """Raise for the first variable that is no setting, but nearly is one."""
    known = [*NO_SETTINGS, *_variables(shape, prefix)]
    strange = sorted(name for name in environ if name.startswith(prefix) and name not in known)
    if not strange:
        return
    for other in others():
        known += _variables(inspect.type_info(other), prefix)
    for name in strange:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1, MISSPELT)
            if close:
                expected = f"a setting that exists (did you mean {close[0]}?)"
                raise ConfigError("environment", name, expected)


def _variables(shape: inspect.Type, prefix: str) -> list[str]:
    """The variables of a type's settings."""
    return [prefix + "_".join(field).upper() for field, _ in _settings(shape)]


def _lists_of_one(shape: inspect.Type, values: dict[str, Any]) -> None:
    """Put a lone string into a list where a setting is a list of strings."""
    for name, inner in (_fields(shape) or {}).items():
        value = values.get(name)
        if isinstance(value, dict):
            _lists_of_one(inner, value)
        elif isinstance(value, str) and _is_list_of_strings(inner):
            values[name] = [value]


def _is_list_of_strings(shape: inspect.Type) -> bool:
    return any(
        isinstance(member, inspect.ListType | inspect.VarTupleType)
        and isinstance(member.item_type, inspect.StrType)
        for member in _members(shape)
    )


def _instead(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, 1)
    if close:
        return f"a setting that exists (did you mean {close[0]!r}?)"
    return f"a setting that exists ({', '.join(known)})"


def _from_text(shape: inspect.Type, text: str) -> Any:
    """A variable's or an option's text as the value that its setting takes."""
    members = _members(shape)
    if any(isinstance(m, inspect.ListType | inspect.VarTupleType) for m in members):
        if not text.lstrip().startswith("["):
            return [word.strip() for word in text.split(",") if word.strip()]
    elif any(
        isinstance(m, inspect.StrType | inspect.LiteralType | inspect.EnumType) for m in members
    ):
        return text
    elif any(isinstance(m, inspect.BoolType) for m in members) and text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


def _put(values: dict[str, Any], field: Path, value: Any, where: str) -> None:
    table = values
    for name in field[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(where, name, "a table")
    table[field[-1]] = value


def _explained(
    error: msgspec.ValidationError, origin: dict[Path, str], where: str, shape: inspect.Type
) -> ConfigError:
    """The same in our words: msgspec writes ``Expected `int`, got `str` - at `$.a.b` ``."""
    match = _AT.match(str(error))
    field = (match["field"] if match else None) or "$"
    what = (match["what"] if match else str(error)).strip()
    missing = re.match(r"Object missing required field `([^`]*)`", what)
    if missing:
        field, what = f"{field}.{missing[1]}", "a value (it is required)"
    field = field.removeprefix("$").removeprefix(".") or "file"
    place = tuple(_INDEX.sub("", field).split("."))
    said_by = next(
        (origin[place[:n]] for n in range(len(place), 0, -1) if place[:n] in origin), where
    )
    there = _shapes_at(shape, place)
    one_of = _ONE_OF.match(what)
    if one_of and (choices := [choice for each in there for choice in _choices(each)]):
        found = one_of["found"].replace("`", "'")
        what = f"one of {', '.join(map(repr, choices))}, not {found}"
    elif what.startswith("Expected `array`") and any(map(_is_list_of_strings, there)):
        got = what.rpartition("got ")[2]
        # One string will do in a table, but not in one of many (`_lists_of_one`).
        one = "" if "[" in field else ", or one string"
        what = f'an array of strings, as ["a", "b"]{one}, got {got}'
    return ConfigError(said_by, field, re.sub(r"^Expected ", "", in_words(what)).replace("`", ""))


def _shapes_at(shape: inspect.Type, place: Path) -> list[inspect.Type]:
    """What may stand at a setting; its path is without the indices of lists.

    A tag of several tables is found in each of them.
    """
    shapes = [shape]
    for name in place:
        below: list[inspect.Type] = []
        for each in shapes:
            items = [
                inner
                for member in _members(each)
                for inner in _members(getattr(member, "item_type", member))
            ]
            for item in items:
                if isinstance(item, inspect.StructType) and item.tag_field == name:
                    below.append(inspect.LiteralType((item.tag,)))
                elif (fields := _fields(item)) is not None and name in fields:
                    below.append(fields[name])
        shapes = below
    return [member for each in shapes for member in _members(each)]


def _choices(shape: inspect.Type) -> list[Any]:
    """The values that a setting of this shape may have, if they are counted."""
    if isinstance(shape, inspect.LiteralType):
        return list(shape.values)
    if isinstance(shape, inspect.EnumType):
        return [member.value for member in shape.cls]
    return []
