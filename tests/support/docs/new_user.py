"""The steps of the README as a new user takes them, from a copy of the source to a dashboard.

make bench-new-user     a clone, a new environment, and the seconds of each step
"""

from __future__ import annotations

import html.parser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.docs.page_runner import matches
from tests.support.docs.pages import ROOT, Block, Typed, blocks, typed

SECTION = "## Quickstart"
LIMIT_S = 60.0
"""The seconds after which one step fails, except for the installation."""
INSTALL_LIMIT_S = 1200.0
OPEN_LIMIT_S = 90.0
"""The seconds from the end of the installation to an open dashboard after which it fails."""
POLL_S = 0.05
DASHBOARD = re.compile(r"^Dashboard: (http://\S+)$", re.MULTILINE)
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "env", "data", "build", "dist", "out", ".*_cache", ".hypothesis"
)
"""The names that a copy of the source leaves out.

Compiled files are not among them, because an installation makes them.
"""


class NewUserError(AssertionError):
    """The error of a step of the README that failed."""


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    ended_s: float
    """Seconds from the beginning of the first step to the end of this one."""


def quickstart(source: Path) -> list[Block]:
    """Return the console blocks of the README's section "Quickstart", in order."""
    readme = source / "README.md"
    lines = readme.read_text(encoding="utf-8").splitlines()
    first = lines.index(SECTION) + 1
    last = next(at for at in range(first, len(lines)) if lines[at].startswith("## "))
    return [one for one in blocks(readme) if first < one.line <= last and one.language == "console"]


def kind_of(block: Block) -> str:
    commands = [one.command for one in typed(block)]
    for what, kind in (("pip install", "install"), ("quire local", "start"), ("make ", "make")):
        if any(what in command for command in commands):
            return kind
    return "use"


def install(source: Path) -> dict[str, str]:
    """Run the README's installation in `source`, and return the shell's environment afterwards."""
    [block] = [one for one in quickstart(source) if kind_of(one) == "install"]
    script = "\n".join(one.command for one in typed(block))
    kept = {name: text for name, text in os.environ.items() if not name.startswith("QUIRE_")}
    kept.pop("PYTHONPATH", None)
    done = subprocess.run(
        ["bash", "-e", "-c", f"exec 3>&1 >&2\n{script}\nenv -0 >&3"],
        cwd=source,
        env=kept,
        stdout=subprocess.PIPE,
        timeout=INSTALL_LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise NewUserError(f"{script}\nstatus {done.returncode}")
    pairs = done.stdout.decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def not_installed(source: Path, directory: Path) -> dict[str, str]:
    """Return the environment of a shell that runs Quire from `source` without an installation.

    Its programs `quire` and `python` use the packages of this interpreter.
    """
    bin_directory = directory / "bin"
    bin_directory.mkdir()
    for name, arguments in (("quire", "-m quire "), ("python", "")):
        script = bin_directory / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments}"$@"\n', encoding="utf-8")
        script.chmod(0o755)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("QUIRE_")}
    path = f"{bin_directory}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "PYTHONPATH": str(source / "src")}


def copy_source(target: Path) -> None:
    """Copy the source to `target` as a clone does, but with uncommitted changes."""
    shutil.copytree(ROOT, target, ignore=LEFT_OUT)


def follow(source: Path, environment: dict[str, str]) -> list[Step]:
    """Follow the README after the installation, and return the steps.

    Raises NewUserError, which names the step that failed.
    """
    begun_s = time.monotonic()
    steps: list[Step] = []

    def done(name: str) -> None:
        steps.append(Step(name, time.monotonic() - begun_s))

    where = run("python -c 'import quire; print(quire.__file__)'", source, environment).strip()
    if not Path(where).resolve().is_relative_to(source.resolve()):
        raise NewUserError(f"{where} is not in {source}")
    wanted = [block for block in quickstart(source) if kind_of(block) not in ("install", "make")]
    if [kind_of(block) for block in wanted] != ["start", "use"]:
        raise NewUserError("the README no longer starts a cluster and then uses it")
    [start] = typed(wanted[0])
    with server(start, source, environment) as dashboard:
        done("a cluster runs")
        look_at(dashboard)
        done("the dashboard is open")
        exports: list[str] = []
        for one in typed(wanted[1]):
            if one.command.startswith("export "):
                exports.append(one.command)
                continue
            said = run("; ".join([*exports, one.command]), source, environment)
            if not matches(one.shown, said):
                raise NewUserError(
                    f"{one.command}: the README shows\n{one.shown}but it printed\n{said}"
                )
            done(one.command)
    done("stopped")
    return steps


def run(command: str, source: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=source,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise NewUserError(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@contextmanager
def server(start: Typed, source: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run a server in another terminal until Ctrl-C, and yield the address of its dashboard."""
    with tempfile.TemporaryDirectory() as scratch:
        out, err = Path(scratch) / "out", Path(scratch) / "err"
        with out.open("wb") as to_out, err.open("wb") as to_err:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {start.command}"],
                cwd=source,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=to_out,
                stderr=to_err,
            )
        try:
            deadline = time.monotonic() + LIMIT_S
            while not (found := DASHBOARD.search(err.read_text(encoding="utf-8"))):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise NewUserError(f"{start.command}: {err.read_text(encoding='utf-8')}")
                time.sleep(POLL_S)
            printed = out.read_text(encoding="utf-8")
            if not matches(start.shown, printed):
                raise NewUserError(f"{start.command}: it printed {printed!r}")
            yield found[1]
            process.send_signal(signal.SIGINT)
            if status := process.wait(LIMIT_S):
                raise NewUserError(f"{start.command}: status {status} after Ctrl-C")
        finally:
            if process.poll() is None:
                process.terminate()  # So that it ends its bookies.
                process.wait(LIMIT_S)


class _Files(html.parser.HTMLParser):
    """A parser that collects the paths of the files that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        path = given.get("src") if tag == "script" else given.get("href") if tag == "link" else None
        self.paths += [path] if path else []


def look_at(dashboard: str) -> None:
    """Load the dashboard's page, the files that it names, and the data that it requests first."""
    page = _Files()
    page.feed(get(dashboard).decode())
    if not page.paths:
        raise NewUserError(f"{dashboard} is not a page that loads anything")
    for path in page.paths:
        get(urllib.parse.urljoin(dashboard + "/", path))
    overview = json.loads(get(f"{dashboard}/api/v1/quire/overview"))
    wrong = [
        one
        for one in overview["problems"]
        # How full the disk of this machine is says nothing about the README.
        if one["severity"] != "note" and "nearly full" not in one["what"]
    ]
    if wrong:
        raise NewUserError(f"{dashboard}: {wrong}")


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        found: bytes = answer.read()
        return found


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="quire-new-user-") as scratch:
        source = Path(scratch) / "quire"
        begun_s = time.monotonic()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
        print(f"| step | seconds |\n|---|---|\n| clone | {time.monotonic() - begun_s:.1f} |")
        begun_s = time.monotonic()
        environment = install(source)
        print(f"| install | {time.monotonic() - begun_s:.1f} |")
        steps = follow(source, environment)
    for step in steps:
        print(f"| {step.name.replace('|', '&#124;')} | {step.ended_s:.1f} after the installation |")
    opened_s = next(step.ended_s for step in steps if step.name == "the dashboard is open")
    if opened_s > OPEN_LIMIT_S:
        print(f"\nmore than {OPEN_LIMIT_S:.0f} s to an open dashboard", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
