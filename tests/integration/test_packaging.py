"""What is installed is complete: wheel, sdist and editable show their plugins to twistd."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from twisted.trial.unittest import TestCase

from tests.integration.packaging import Environment, build, copy_source


@functools.cache
def built() -> tuple[str, str, str, str]:
    """The folder of it all, the copied source, the wheel and the sdist; removed at exit."""
    folder = tempfile.mkdtemp(prefix="cx", dir="/tmp")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    dist = os.path.join(folder, "dist")
    os.mkdir(dist)
    source = copy_source(folder)
    return folder, source, *build(source, dist, isolated=False)


class Distributions(TestCase):
    """Built once, each installed into an environment outside the checkout."""

    timeout = 300

    def setUp(self) -> None:
        self.folder, self.source, self.wheel, self.sdist = built()

    def installed(self, name: str, *what: str) -> Environment:
        """An environment in which `what` is installed."""
        made = Environment.make(os.path.join(self.folder, name), clean=False)
        made.install(*what)
        return made

    def test_wheel(self) -> None:
        """A wheel shows both plugins, and works without any extra."""
        self.assertEqual(self.installed("wheel", self.wheel).missing(), [])

    def test_sdist(self) -> None:
        """An sdist holds all that a wheel is made of."""
        self.assertEqual(self.installed("sdist", self.sdist).missing(), [])

    def test_editable(self) -> None:
        """An editable install shows the plugins too (style 22)."""
        self.assertEqual(self.installed("editable", "-e", self.source).missing(), [])

    def test_contents(self) -> None:
        """The wheel has every file of the package, and no tests or twisted/__init__."""
        with zipfile.ZipFile(self.wheel) as wheel:
            names = set(wheel.namelist())
        self.assertIn("twisted/plugins/cortextx_plugins.py", names)
        package = Path(self.source, "cortextx")
        for path in package.rglob("*"):
            if path.is_file():
                self.assertIn(str(path.relative_to(self.source)), names)
        for name in names:
            self.assertFalse(name.startswith(("tests/", "bench/", "docs/")), name)
        self.assertNotIn("twisted/__init__.py", names)
        self.assertNotIn("twisted/plugins/__init__.py", names)
