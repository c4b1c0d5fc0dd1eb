"""Builds the distributions, installs them where nothing of the checkout is, and looks.

As a module run by `python -m tests.integration.packaging` it does so with real
dependencies from the package index, in clean environments. The tests do the same
in seconds: their environments see this one's dependencies, but not its cortextx.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LEFT_OUT = shutil.ignore_patterns(
    ".*", "*.egg-info", "build", "dist", "__pycache__", "_trial_temp*", "dropin.cache"
)
SECONDS = 300.0
PLUGINS = ("cortex-server", "cortex-agent")
BARE = """
import sys
for name in ("rich", "prompt_toolkit", "treq"):
    sys.modules[name] = None
import cortextx.app.agent_tap, cortextx.app.cli.main
import cortextx.app.cli.agent, cortextx.app.cli.search, cortextx.app.cli.tail, cortextx.app.cli.up
print(cortextx.__file__)
"""


def run(*command: str, cwd: str) -> str:
    """Run a command away from this checkout; answers what it printed, raises if it failed."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "CORTEXTX_", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{' '.join(command)} failed ({done.returncode}):\n{done.stdout}")
    return done.stdout


def copy_source(into: str) -> str:
    """A copy of the checkout without what is built or cached; answers its path."""
    copied = os.path.join(into, "source")
    shutil.copytree(ROOT, copied, ignore=LEFT_OUT)
    return copied


def build(source: str, into: str, isolated: bool) -> tuple[str, str]:
    """Build an sdist and from it a wheel; answers the paths of the wheel and the sdist."""
    with_ours = () if isolated else ("--no-isolation", "--skip-dependency-check")
    run(sys.executable, "-m", "build", *with_ours, "--outdir", into, source, cwd=into)
    names = os.listdir(into)
    wheel = next(name for name in names if name.endswith(".whl"))
    sdist = next(name for name in names if name.endswith(".tar.gz"))
    return os.path.join(into, wheel), os.path.join(into, sdist)


@dataclass(frozen=True)
class Environment:
    """A virtual environment in a directory of its own; `clean` has no dependencies of ours."""

    path: str
    clean: bool

    @classmethod
    def make(cls, path: str, clean: bool) -> Environment:
        """Make it. One that is not clean sees this environment's packages, but for cortextx."""
        run(sys.executable, "-m", "venv", *(() if clean else ("--without-pip",)), path, cwd="/")
        if not clean:
            site = os.path.join(
                path, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages"
            )
            with open(os.path.join(site, "zz_dependencies.pth"), "w", encoding="utf-8") as file:
                # A plain path: the .pth files in it, an editable cortextx's too, do not count.
                file.write(sysconfig.get_paths()["purelib"] + "\n")
        return cls(path, clean)

    def program(self, name: str) -> str:
        """The path of a program in it."""
        return os.path.join(self.path, "bin", name)

    def install(self, *what: str) -> None:
        """Install with pip: into a clean one with dependencies, else without."""
        if self.clean:
            run(self.program("python"), "-m", "pip", "install", "-q", *what, cwd=self.path)
        else:
            run(
                sys.executable, "-m", "pip", "--python", self.program("python"), "install", "-q",
                "--no-deps", "--no-index", "--no-build-isolation", *what, cwd=self.path,
            )  # fmt: skip

    def twistd(self, *arguments: str) -> str:
        """What `twistd ARGUMENTS` prints, called outside the checkout."""
        code = "from twisted.scripts.twistd import run; run()"
        return run(self.program("python"), "-c", code, *arguments, cwd=self.path)

    def missing(self) -> list[str]:
        """What is wrong with the installation in it; empty if it is as it should be."""
        wrong = []
        listed = self.twistd("--help")
        wrong += [f"twistd does not list {name}" for name in PLUGINS if name not in listed]
        for name in PLUGINS:
            if "--state-dir" not in self.twistd(name, "--help"):
                wrong.append(f"twistd {name} --help does not show its options")
        version = run(self.program("cortextx"), "--version", cwd=self.path)
        if not version.startswith("cortextx "):
            wrong.append(f"cortextx --version printed {version!r}")
        run(self.program("python"), "-c", BARE, cwd=self.path)
        return wrong


def main() -> int:
    """The smoke test with real dependencies."""
    with tempfile.TemporaryDirectory(prefix="cx", dir="/tmp") as folder:
        source = copy_source(folder)
        dist = os.path.join(folder, "dist")
        os.mkdir(dist)
        wheel, sdist = build(source, dist, isolated=True)
        made = Environment.make(os.path.join(folder, "clean"), clean=True)
        # Each in place of the one before; the dependencies come with the first.
        for name, what in (
            ("wheel", (wheel,)),
            ("sdist", ("--force-reinstall", "--no-deps", sdist)),
            ("editable", ("--force-reinstall", "--no-deps", "-e", source)),
        ):
            made.install(*what)
            wrong = made.missing()
            print(f"{name}: {'; '.join(wrong) or 'both plugins, the command, no extra needed'}")
            if wrong:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
