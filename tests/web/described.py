"""Holds answers of the HTTP API to its OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from jsonschema import Draft202012Validator, FormatChecker

METHODS = ("get", "put", "post", "delete", "patch")
_formats = FormatChecker(formats=())


@_formats.checks("date-time", raises=ValueError)
def _is_moment(value: object) -> bool:
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


@_formats.checks("uuid", raises=ValueError)
def _is_uuid(value: object) -> bool:
    return not isinstance(value, str) or bool(UUID(value))


class Description:
    """An OpenAPI document. `seen` are the (operation, status) that were checked."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.seen: set[tuple[str, int]] = set()

    @cached_property
    def operations(self) -> list[tuple[str, re.Pattern[str], dict[str, Any]]]:
        """Method, pattern of the path, operation."""
        return [
            (method.upper(), re.compile(re.sub(r"\{\w+\}", "[^/]+", path) + r"\Z"), operation)
            for path, item in self.document["paths"].items()
            for method, operation in item.items()
        ]

    def operation(self, method: str, path: str) -> dict[str, Any] | None:
        """What a request means; fixed parts of a path win over named ones."""
        found = [
            (pattern.pattern.count("[^/]+"), operation)
            for known, pattern, operation in self.operations
            if known == method and pattern.match(path)
        ]
        return min(found, key=lambda pair: pair[0])[1] if found else None

    def check(
        self, method: str, path: str, status: int, headers: Mapping[str, str], body: bytes
    ) -> None:
        """Raise AssertionError unless the answer is as described."""
        operation = self.operation(method, path)
        if operation is None:
            assert status in (401, 404, 405, 421, 400), (method, path, status)
            answer = self.document["components"]["responses"]["Problem"]
        else:
            answers = operation["responses"]
            assert status >= 400 or str(status) in answers, (method, path, status)
            answer = answers.get(str(status), answers["default"])
            self.seen.add((operation["operationId"], status))
        if "$ref" in answer:
            answer = self.resolve(answer["$ref"])
        media = headers.get("content-type", "").partition(";")[0]
        if "content" not in answer:
            assert body == b"", body
            return
        assert media in answer["content"], (method, path, media)
        if media.endswith("json"):
            schema = answer["content"][media]["schema"]
            self.validate(schema, json.loads(body))

    def validate(self, schema: dict[str, Any], value: Any) -> None:
        """Raise AssertionError with what is wrong where."""
        whole = {**schema, "components": self.document["components"]}
        validator = Draft202012Validator(whole, format_checker=_formats)
        faults = [
            f"{'/'.join(map(str, f.path))}: {f.message}" for f in validator.iter_errors(value)
        ]
        assert not faults, faults[:5]

    def resolve(self, ref: str) -> Any:
        """What a reference within the document names."""
        found: Any = self.document
        for part in ref.removeprefix("#/").split("/"):
            found = found[part]
        return found
