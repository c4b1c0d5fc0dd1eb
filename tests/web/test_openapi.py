"""The description of the HTTP API: it is one, it is whole, and answers are held to it.

Every answer that `tests.web.case` gets is checked against it too.
"""

from __future__ import annotations

from jsonschema import Draft202012Validator

from cortextx.web.api_tail import PAGE
from cortextx.web.mount import routes_of
from tests.web.case import WebCase, described
from tests.web.described import METHODS


class Document(WebCase):
    def test_it_is_served_to_anybody(self) -> None:
        """The document needs no token, but a name that is ours."""
        self.assertEqual(self.begin("/api/v1/openapi.json", role=None).answer().status, 200)
        answer = self.begin("/api/v1/openapi.json", headers={"Host": "evil.example"}).answer()
        self.assertEqual(answer.status, 421)

    def test_every_route_is_in_it(self) -> None:
        """No route is left out, and no name is given twice."""
        found = {
            (method.upper(), path): operation["operationId"]
            for path, item in described().document["paths"].items()
            for method, operation in item.items()
            if method in METHODS
        }
        routes = routes_of(self.sources).routes
        self.assertEqual(found, {(route.method, route.path): route.name for route in routes})
        self.assertEqual(len(set(found.values())), len(routes))

    def test_schemas_are_schemas(self) -> None:
        """Every schema is a good one, and every reference leads somewhere."""
        document = described().document
        refs: list[str] = []

        def walk(value: object) -> None:
            if isinstance(value, dict):
                for name, member in value.items():
                    if name == "$ref":
                        refs.append(member)
                    elif name == "schema":
                        Draft202012Validator.check_schema(member)
                    walk(member)
            elif isinstance(value, list):
                for member in value:
                    walk(member)

        walk(document)
        for schema in document["components"]["schemas"].values():
            Draft202012Validator.check_schema(schema)
        self.assertTrue(refs)
        for ref in refs:
            described().resolve(ref)

    def test_parameters_are_described(self) -> None:
        """A parameter has its bounds and default, and no null, which a query cannot say."""
        operation = described().operation("GET", "/search")
        assert operation is not None
        parameters = {each["name"]: each["schema"] for each in operation["parameters"]}
        self.assertEqual(parameters["limit"]["default"], 100)
        self.assertEqual(parameters["limit"]["maximum"], 1000)
        self.assertEqual(parameters["host"]["items"], {"type": "string"})
        self.assertNotIn("null", str(parameters))
        self.assertGreater(PAGE, 0)

    def test_it_can_refuse(self) -> None:
        """An answer with a member that is not described, or without one that is, is a fault:
        these tests can fail."""
        schema = {"$ref": "#/components/schemas/Who"}
        described().validate(schema, {"name": "x", "role": "viewer"})
        for wrong in (
            {"name": "x"},
            {"name": "x", "role": "root"},
            {"name": "x", "role": "viewer", "more": 1},
        ):
            self.assertRaises(AssertionError, described().validate, schema, wrong)
