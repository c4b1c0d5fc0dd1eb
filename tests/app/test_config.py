"""Settings: what wins, and that each error names its place, its field and what to write."""

from __future__ import annotations

import os
import tempfile
from typing import Literal

from msgspec import Struct, field
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.config import blamed, load, state_dir
from cortextx.errors import ConfigError


class Server(Struct, frozen=True, kw_only=True):
    """A table."""

    url: str | None = None
    port: int = 1


class FileSource(Struct, frozen=True, kw_only=True, tag_field="kind", tag="file"):
    """One kind of a list's tables."""

    path: str


class Other(Struct, frozen=True, kw_only=True, tag_field="kind", tag="other"):
    """Another kind."""

    name: str = ""


class Settings(Struct, frozen=True, kw_only=True):
    """A whole configuration; it does not itself forbid unknown fields."""

    listen: str = "tcp:0"
    level: Literal["low", "high"] = "low"
    insecure: bool = False
    rate: float = 1.5
    allow: list[str] = field(default_factory=list)
    server: Server = field(default_factory=Server)
    sources: list[FileSource | Other] = field(default_factory=list)


class OtherServer(Struct, frozen=True):
    """A table of the same name in another configuration."""

    urls: list[str] = field(default_factory=list)


class OtherSettings(Struct, frozen=True):
    """Another configuration."""

    server: OtherServer = field(default_factory=OtherServer)


class ConfigCase(SynchronousTestCase):
    """A directory with a file in it."""

    def file(self, text: str) -> str:
        """Write a configuration and answer its path."""
        folder = tempfile.mkdtemp()
        self.addCleanup(os.rmdir, folder)
        path = os.path.join(folder, "x.toml")
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        self.addCleanup(os.unlink, path)
        return path

    def fault(self, text: str = "", **more: object) -> ConfigError:
        """The error that a configuration with `text` as its file raises."""
        more.setdefault("environ", {})
        return self.assertRaises(ConfigError, load, Settings, path=self.file(text), **more)


class Files(ConfigCase):
    """What is no file of settings, though it is there."""

    def test_a_pipe_is_refused_and_not_waited_for(self) -> None:
        """Nobody writes to it: opening it must not hang."""
        path = os.path.join(tempfile.mkdtemp(), "x.toml")
        os.mkfifo(path)
        error = self.assertRaises(ConfigError, load, Settings, path=path, environ={})
        self.assertEqual(error.expected, "a regular file")

    def test_what_nests_too_deep_is_a_fault_of_the_file(self) -> None:
        self.assertIn("nests", self.fault("x = " + "[" * 20_000).expected)


class WhatWins(ConfigCase):
    """File, environment, command line."""

    def test_nothing_configured(self) -> None:
        """Without any configuration the defaults hold."""
        self.assertEqual(load(Settings, environ={}), Settings())

    def test_a_default_file_may_be_missing(self) -> None:
        """The default path need not exist; a path that was named must."""
        gone = "/nonexistent/x.toml"
        self.assertEqual(load(Settings, default_path=gone, environ={}), Settings())
        error = self.assertRaises(ConfigError, load, Settings, path=gone, environ={})
        self.assertEqual((error.where, error.expected), (gone, "a file that exists"))

    def test_order(self) -> None:
        """The command line wins over the environment, which wins over the file."""
        path = self.file('listen = "file"\nrate = 2\n[server]\nurl = "file"\nport = 5\n')
        found = load(
            Settings,
            path=path,
            environ={"CORTEXTX_LISTEN": "env", "CORTEXTX_SERVER_URL": "env"},
            overrides={"listen": "option", "server.url": None},
        )
        self.assertEqual(found.listen, "option")
        self.assertEqual(found.rate, 2.0)
        self.assertEqual(found.server, Server(url="env", port=5))

    def test_text_becomes_what_the_setting_takes(self) -> None:
        """A variable's text is read by the type of its setting."""
        found = load(
            Settings,
            environ={
                "CORTEXTX_ALLOW": "journald, file:/var/log/*.log",
                "CORTEXTX_INSECURE": "1",
                "CORTEXTX_SERVER_PORT": "7",
                "CORTEXTX_SERVER_URL": "12",
                "CORTEXTX_RATE": "3",
                "CORTEXTX_SOURCES": '[{kind = "file", path = "/x"}]',
                "CORTEXTX_STATE_DIR": "/elsewhere",
            },
        )
        self.assertEqual(found.allow, ["journald", "file:/var/log/*.log"])
        self.assertEqual(found.sources, [FileSource(path="/x")])
        self.assertEqual(found.server, Server(url="12", port=7))
        self.assertIs(found.insecure, True)
        self.assertEqual(found.rate, 3.0)


class WhatIsWrong(ConfigCase):
    """Errors say where, which field, and what to write there."""

    def test_unknown_keys(self) -> None:
        """An unknown key is an error at any depth, with the likely one named."""
        for text, field_name, hint in (
            ('lisen = "x"', "lisen", "'listen'"),
            ('[server]\nurll = "x"', "server.urll", "'url'"),
            ('[[sources]]\nkind = "file"\npath = "/x"\npth = 1', "sources[0].pth", "'path'"),
            ("zzz = 1", "zzz", "listen, level"),
        ):
            error = self.fault(text)
            self.assertEqual(error.field, field_name)
            self.assertIn(hint, error.expected)

    def test_wrong_type_in_the_file(self) -> None:
        """A value of the wrong type names the file and the path to the field."""
        path = self.file('[server]\nport = "x"')
        error = self.assertRaises(ConfigError, load, Settings, path=path, environ={})
        self.assertEqual((error.where, error.field), (path, "server.port"))
        self.assertEqual(error.expected, "int, got str")

    def test_wrong_type_in_a_variable(self) -> None:
        """A wrong variable is named itself, not the file."""
        error = self.assertRaises(
            ConfigError, load, Settings, environ={"CORTEXTX_SERVER_PORT": "many"}
        )
        self.assertEqual((error.where, error.field), ("CORTEXTX_SERVER_PORT", "server.port"))

    def test_wrong_item_of_a_variable(self) -> None:
        """A fault inside a list still names the variable that brought the list."""
        error = self.assertRaises(
            ConfigError, load, Settings, environ={"CORTEXTX_SOURCES": '[{kind = "file"}]'}
        )
        self.assertEqual((error.where, error.field), ("CORTEXTX_SOURCES", "sources[0].path"))
        self.assertIn("required", error.expected)

    def test_wrong_option(self) -> None:
        """A wrong option is said to stand on the command line."""
        error = self.assertRaises(
            ConfigError, load, Settings, environ={}, overrides={"level": "middling"}
        )
        self.assertEqual((error.where, error.field), ("command line", "level"))
        error = self.assertRaises(
            ConfigError, load, Settings, environ={}, overrides={"nothing": "x"}
        )
        self.assertEqual(error.field, "nothing")

    def test_not_toml(self) -> None:
        """A syntax error says that TOML was expected, and the line."""
        error = self.fault("listen = \nrate = 1")
        self.assertIn("TOML", error.expected)
        self.assertIn("line 1", error.expected)

    def test_a_table_where_a_value_stands(self) -> None:
        """A variable for `server.url` cannot go below a server that is no table."""
        path = self.file('server = "x"')
        error = self.assertRaises(
            ConfigError, load, Settings, path=path, environ={"CORTEXTX_SERVER_URL": "x"}
        )
        self.assertEqual((error.field, error.expected), ("server", "a table"))

    def test_one_of_several_words(self) -> None:
        """Where a setting is one of several words, or a table one of several kinds, the
        error lists them and says what stands there."""
        error = self.fault('level = "middling"')
        self.assertEqual(error.expected, "one of 'high', 'low', not 'middling'")
        error = self.fault('[[sources]]\nkind = "fiel"\npath = "/x"')
        self.assertEqual(error.field, "sources[0].kind")
        self.assertEqual(error.expected, "one of 'file', 'other', not 'fiel'")

    def test_one_string_for_a_list(self) -> None:
        """A file may give one string, commas and all, where a list of them is wanted;
        what else it may be is said."""
        found = load(Settings, path=self.file('allow = "a,b"'), environ={})
        self.assertEqual(found.allow, ["a,b"])
        error = self.fault("allow = 5")
        self.assertEqual(
            (error.field, error.expected),
            ("allow", 'an array of strings, as ["a", "b"], or one string, got int'),
        )

    def test_a_misspelt_variable(self) -> None:
        """A variable that nearly is a setting is an error that names the setting; settings
        of another type, and names that resemble none, are left alone."""

        error = self.fault(environ={"CORTEXTX_SERVER_PROT": "1"})
        self.assertEqual((error.where, error.field), ("environment", "CORTEXTX_SERVER_PROT"))
        self.assertIn("CORTEXTX_SERVER_PORT", error.expected)
        load(
            Settings,
            environ={
                "CORTEXTX_SERVER_URLS": "x",
                "CORTEXTX_STATE_DIR": "/x",
                "CORTEXTX_SERVER_SERVICE_HOST": "10.0.0.1",
                "CORTEXTX_SERVER_PORT_8600_TCP_PROTO": "tcp",
            },
            others=lambda: [OtherSettings],
        )

    def test_blame(self) -> None:
        """A later check's error is of the variable or option that brought the setting, and
        of the file where neither did."""
        origins: dict[str, str] = {}
        load(
            Settings,
            environ={"CORTEXTX_SERVER_URL": "x"},
            overrides={"listen": "y"},
            origins=origins,
        )
        for field_name, where in (
            ("server.url", "CORTEXTX_SERVER_URL"),
            ("listen", "command line"),
            ("rate", "x.toml"),
        ):
            error = blamed(ConfigError("x.toml", field_name, "better"), origins)
            self.assertEqual((error.where, error.field), (where, field_name))


class StateDir(SynchronousTestCase):
    """Where a process keeps everything."""

    def test_order(self) -> None:
        """The option wins over CORTEXTX_STATE_DIR, which wins over this user's own place."""
        environ = {"CORTEXTX_STATE_DIR": "/tmp/b", "XDG_STATE_HOME": "/tmp/c"}
        self.assertEqual(state_dir("/tmp/a", environ), "/tmp/a")
        self.assertEqual(state_dir(None, environ), "/tmp/b")
        self.patch(os, "geteuid", lambda: 1000)
        del environ["CORTEXTX_STATE_DIR"]
        self.assertEqual(state_dir(None, environ), "/tmp/c/cortextx")

    def test_root(self) -> None:
        """Root's own place is the system's, whatever XDG says."""
        self.patch(os, "geteuid", lambda: 0)
        self.assertEqual(state_dir(None, {"XDG_STATE_HOME": "/tmp/c"}), "/var/lib/cortextx")

    def test_absolute(self) -> None:
        """A relative directory is made absolute: services may change theirs."""
        self.assertEqual(state_dir("x", {}), os.path.abspath("x"))

    def test_too_long_for_a_socket(self) -> None:
        """A directory whose sockets could not be bound is refused by name."""
        error = self.assertRaises(ConfigError, state_dir, "/" + "x" * 100, {})
        self.assertEqual(error.where, "--state-dir")
        self.assertIn("at most", error.expected)
