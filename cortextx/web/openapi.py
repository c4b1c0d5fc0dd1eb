"""The OpenAPI 3.1 description of the HTTP API, made from its routes (PURE).

Nothing is said twice: types of parameters, bodies and answers are the ones that
requests are read with and that tests hold the answers to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from cortextx.web.answers import Entry, TailGap
from cortextx.web.problems import ProblemBody
from cortextx.web.routes import MAX_SEGMENT, Route, parameter_fields

BASE = "/api/v1"
_REF = "#/components/schemas/{name}"


def document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """The whole document."""
    kinds = [route.answer for route in routes if route.answer is not None]
    kinds += [route.body for route in routes if route.body is not None]
    kinds += [ProblemBody, Entry, TailGap]
    _, schemas = msgspec.json.schema_components(dict.fromkeys(kinds), ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = operation(route)
    whole = {
        "openapi": "3.1.0",
        "info": {
            "title": "CortexTX fleet server",
            "version": version,
            "description": (
                "Logs, hosts and probes of a fleet. Every operation needs a named token, whose"
                " role is viewer, operator or admin; each may do what the ones before it may."
                " A request's line and headers may have 16 KiB, its body 64 KiB."
            ),
        },
        "servers": [{"url": BASE}],
        "security": [{"token": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "The request is refused or failed (RFC 9457).",
                    "content": {
                        "application/problem+json": {
                            "schema": {"$ref": _REF.format(name="ProblemBody")}
                        }
                    },
                }
            },
        },
    }
    _spell_patterns(whole)
    return whole


def _spell_patterns(part: Any) -> None:
    """JSON Schema's patterns are ECMA's, where `$` means what `\\Z` does in Python."""
    if isinstance(part, dict):
        if isinstance(part.get("pattern"), str):
            part["pattern"] = part["pattern"].replace(r"\A", "^").replace(r"\Z", "$")
        for each in part.values():
            _spell_patterns(each)
    elif isinstance(part, list):
        for each in part:
            _spell_patterns(each)


def operation(route: Route) -> dict[str, Any]:
    """One route."""
    made: dict[str, Any] = {
        "operationId": route.name,
        "description": f"{route.text} Needs the role {route.role}.",
        "x-role": route.role,
        "parameters": [*_in_path(route), *_in_query(route)],
        "responses": {
            str(route.status if route.answer is not None or route.stream else 204): _answer(route),
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }
    if route.stream:
        made["parameters"].append(
            {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}}
        )
    if route.body is not None:
        schema = {"$ref": _REF.format(name=route.body.__name__)}
        made["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return made


def _answer(route: Route) -> dict[str, Any]:
    if route.stream:
        stream = {"text/event-stream": {"schema": {"type": "string"}}}
        return {"description": "Server-sent events.", "content": stream}
    if route.answer is None:
        return {"description": "Done."}
    schema = {"$ref": _REF.format(name=route.answer.__name__)}
    return {"description": "Done.", "content": {"application/json": {"schema": schema}}}


def _in_path(route: Route) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in route.parts if part.startswith("{")]
    return [
        {"name": name, "in": "path", "required": True, "schema": _part(route, name)}
        for name in names
    ]


def _part(route: Route, name: str) -> dict[str, Any]:
    if name in route.names:
        return msgspec.json.schema(route.names[name])
    return {"type": "string", "minLength": 1, "maxLength": MAX_SEGMENT}


def _in_query(route: Route) -> list[dict[str, Any]]:
    schema = msgspec.json.schema(route.params)
    properties = schema["$defs"][route.params.__name__]["properties"]
    return [
        {
            "name": field.encode_name,
            "in": "query",
            "required": field.required,
            "schema": _without_null(properties[field.encode_name]),
        }
        for field in parameter_fields(route.params)
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that is not given has no value: null cannot be written in a query."""
    made = {name: value for name, value in schema.items() if name != "default"}
    if schema.get("default") not in (None, [], ()):
        made["default"] = schema["default"]
    if "anyOf" in made:
        others = [each for each in made["anyOf"] if each != {"type": "null"}]
        if len(others) == 1:
            del made["anyOf"]
            made |= others[0]
        else:
            made["anyOf"] = others
    if isinstance(made.get("enum"), list):
        made["enum"] = [value for value in made["enum"] if value is not None]
    return made
