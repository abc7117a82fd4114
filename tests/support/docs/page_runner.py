"""A runner of the blocks of a page, as a reader would run them.

Each page has one shell, one Python and one directory.
"""

from __future__ import annotations

import ast
import asyncio
import configparser
import contextlib
import gc
import inspect
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import click
import yaml
from click.testing import CliRunner

from quire.cli.common.groups import DefaultGroup
from quire.cli.main import cli
from quire.configuration.layers import file_layer, merged
from quire.testing._process import free_ports, is_free
from tests.support.docs.pages import ROOT, Block, Here, Typed, needs, pieces, typed
from tests.support.processes.forked_server import FRESH, ForkedServer, forked_quire

PROGRAMS = str(Path(sys.executable).parent)
"""The directory of the program `quire`."""
LIMIT_S = 60.0
"""The seconds after which one command or one block of Python fails the test."""
SPARK_LIMIT_S = 300.0
"""The seconds after which one command or block on a page about Spark fails the test."""
POLL_S = 0.02
PORTS = {
    "3181": 0,
    "3182": 1,
    "3183": 2,
    "3184": 3,
    "3185": 4,
    "8080": 5,
    "8081": 6,
    "8082": 7,
    "2181": 8,
}
"""The ports of bookies, HTTP servers and ZooKeeper on the pages, each with an index.

In tests, the free port with this index in a row of free ports replaces the port.
"""
SERVER = re.compile(
    r"^\s*(\w+=\S+\s+)*(quire (local|ui|http|zookeeper|autorecovery start"
    r"|bookie( start)? (?=-)|pipeline (?!.*--for ).*--continuous)|uvicorn )"
)
FOLLOWS = re.compile(r"^\s*quire (stream|ledger) .*(\s-f|\s--follow)\b")
COMMENT = re.compile(r"\s+# .*$")
PAYLOAD = re.compile(r"quire (ledger (read|write)|stream (read|write|tail)|object|simulate)\b")
"""The form of commands that need a process of their own.

They use the descriptors of their process, or start other processes.
"""
SHELL = re.compile(r"[|&;<>$`(*?]")
QUOTED = re.compile(r"'[^']*'")
ENDED = re.compile(r"\bkill -(?:INT|TERM|9)((?: \$SERVER_\d+)+)")
"""The form of a hidden command that ends servers, as the reader does with Ctrl-C.

The runner waits until they have ended, because the reader waits for the prompt of the terminal.
"""
LOOP = re.compile(r"\b(while|until)\b")
"""The form of commands with a loop, which run without `pipefail`.

A loop may fail several times, and only the last command of its pipe counts.
"""
NOT_HERE = ("pip", "apt", "docker", "kubectl", "python3", "scripts/lock", "sudo", "useradd")
"""The programs that no test runs, because they change the machine or take long."""
READ_ONLY = ("", "text", "mermaid")
"""The languages of blocks with pictures, messages and formats, which are not run."""


class PageError(AssertionError):
    """The error of a block that did not do what its page says."""


class PageRunner:
    def __init__(
        self,
        page: Path,
        directory: Path,
        environment: dict[str, str],
        *,
        names: dict[str, Any] | None = None,
        spark: bool = False,
    ) -> None:
        """Prepare to run a page.

        With `spark` there is a Spark session, and blocks that need it are run. On a page that is
        not about Spark, no other blocks are run then.
        """
        self.page = page
        self._spark = spark
        self._limit_s = SPARK_LIMIT_S if spark else LIMIT_S
        self.ran = 0
        self._directory = directory
        self._where = directory
        base = ports_in_a_row(len(PORTS))
        self._environment = {
            **environment,
            "PATH": f"{PROGRAMS}{os.pathsep}{environment['PATH']}",
            "PAGE": str(directory),
            "ROOT": str(ROOT),
        }
        self._environment.pop("QUIRE_DEBUG", None)
        self._here = {said: str(base + number) for said, number in PORTS.items()}
        self._names: dict[str, Any] = {"__name__": "__page__", **(names or {})}
        self._loop = asyncio.Runner()
        self._servers: list[tuple[str, subprocess.Popen[bytes]]] = []

    def __enter__(self) -> PageRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end_servers(check=error is None)
        finally:
            self._loop.close()
            self._names.clear()
            gc.collect()  # Handles that a page leaves open cause warnings now, not in a later test.

    def read(self) -> None:
        """Check every block without running it."""
        for piece in pieces(self.page):
            if isinstance(piece, Block):
                self._look_at(piece)

    def run(self) -> None:
        """Run every block of the page in order."""
        for piece in pieces(self.page):
            if isinstance(piece, Here):
                self._here[piece.said] = replaced(piece.meant, self._here)
            elif self._spark and not self.needs_spark(piece):
                continue
            elif piece.not_run or self.needs_spark(piece) is not self._spark:
                self._look_at(piece)
            else:
                self._run_block(piece)
                self.ran += not piece.hidden

    def needs_spark(self, block: Block) -> bool:
        return block.spark or "spark" in needs(self.page)

    def _run_block(self, block: Block) -> None:
        if block.title:
            target = self._directory / block.title
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(self._meant(block.text), encoding="utf-8")
        if block.language == "console":
            commands = typed(block)
            for number, one in enumerate(commands, start=1):
                last = number == len(commands)
                if last and block.interrupted:
                    self._follow(one, self._meant(one.command), self._meant(block.once))
                else:
                    self._type(one, block.status if last else 0)
        elif block.language == "python" and not block.title:
            self._python(block)
        elif block.language == "sql":
            for statement in filter(str.strip, self._meant(block.text).split(";")):
                self._names["spark"].sql(statement)
        else:
            self._check_file(block)

    # -- files --------------------------------------------------------------------------------

    def _check_file(self, block: Block) -> None:
        text = self._meant(block.text)
        if block.language == "toml":
            if "project" not in tomllib.loads(text):
                path = self._directory / ".checked.toml"
                path.write_text(text, encoding="utf-8")
                assert not (problems := merged([file_layer(path)]).problems), problems
        elif block.language == "json":
            for line in (
                [text] if text.startswith("{\n") else text.replace("\n  ", " ").splitlines()
            ):
                json.loads(line)
        elif block.language == "yaml":
            assert yaml.safe_load(text)
        elif block.language == "ini":
            self._check_unit(text)
        elif block.language == "python":
            ast.parse(text)
        elif block.language in READ_ONLY:
            code = [
                line
                for line in text.splitlines()
                if re.match(r"\s*(\$|import|from \S+ import) ", line)
            ]
            if code:
                raise PageError(f"{self._at(block.line)}: this is code, not text: {code[0]}")
        else:
            raise PageError(f"{self._at(block.line)}: cannot run the language {block.language!r}")

    def _check_unit(self, text: str) -> None:
        """Check additions to Quire's systemd unit, with systemd if it is installed."""
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.read_string(text)
        ours = (ROOT / "deploy" / "systemd" / "quire-bookie.service").read_text(encoding="utf-8")
        assert all(f"[{section}]" in ours for section in unit.sections()), unit.sections()
        if shutil.which("systemd-analyze"):
            path = self._directory / "quire-bookie.service"
            quire = str(Path(sys.executable).with_name("quire"))
            path.write_text(f"{ours.replace('/opt/quire/bin/quire', quire)}\n{text}")
            command = ["systemd-analyze", "verify", "--man=no", str(path)]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=self._limit_s, check=False
            )
            said = [line for line in done.stderr.splitlines() if str(path) in line]
            assert not said, said

    def _look_at(self, block: Block) -> None:
        """Check a block without running it.

        Its commands and options must exist, and its Python must compile.
        """
        if block.hidden:
            return
        if block.language == "python":
            compile(block.text, str(self.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if block.language != "console":
            return
        for one in typed(block):
            for part in re.split(
                r"\n|&&|\||\s[<>]\s", COMMENT.sub("", one.command.replace("\\\n", " "))
            ):
                words = shlex.split(part)
                if "quire" in words[:1]:
                    with self._as_environment():
                        parse_quire(words[1:])
                elif words[:1] == ["make"]:
                    self._status(f"make -n {shlex.join(words[1:])}", cwd=ROOT)

    def _status(self, command: str, cwd: Path) -> None:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=cwd,
            capture_output=True,
            timeout=self._limit_s,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr.decode()}"

    # -- Python -------------------------------------------------------------------------------

    def _python(self, block: Block) -> None:
        source = "\n" * (block.line - 1) + self._meant(block.text)
        code = compile(source, str(self.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        try:
            with (
                self._as_environment(),
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.chdir(self._where),
            ):
                if code.co_flags & inspect.CO_COROUTINE:
                    self._loop.run(self._within_limit(eval(code, self._names)))
                else:
                    with interrupted_after(self._limit_s):
                        exec(code, self._names)
        except Exception as error:
            raise PageError(f"{self._at(block.line)}: {type(error).__name__}: {error}") from error

    @contextlib.contextmanager
    def _as_environment(self) -> Iterator[None]:
        before = dict(os.environ)
        os.environ.update(self._environment)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    async def _within_limit(self, body: Any) -> None:
        async with asyncio.timeout(self._limit_s):
            await body

    # -- the shell ----------------------------------------------------------------------------

    def _type(self, one: Typed, status: int) -> None:
        command = self._meant(one.command)
        if command.startswith("make "):
            self._status(f"make -n {command.removeprefix('make ')}", cwd=ROOT)
        elif SERVER.match(command) and "--help" not in command:
            self._serve(one, command)
        elif FOLLOWS.match(command):
            self._follow(one, command)
        else:
            got, output, said = self._execute(command)
            if got != status:
                what = f"status {got}, not {status}"
                raise PageError(f"{self._at(one.line)}: {command}: {what}\n{output}{said}")
            for ended in ENDED.findall(one.command):
                for number in re.findall(r"\d+", ended):
                    self._servers[int(number) - 1][1].wait(self._limit_s)
            shown = self._meant(one.shown)
            # A terminal shows both outputs. A page may omit standard error.
            if shown and not any(
                matches(shown, text, one.numbers) for text in (output, output + said)
            ):
                self._differs(one, output + said)

    def _execute(self, command: str) -> tuple[int, str, str]:
        """Run a command, and return its exit status, standard output and standard error."""
        if command.split(maxsplit=1)[0] in NOT_HERE:
            raise PageError(f"{self.page.name}: {command}: changes this machine; mark the block")
        plain = COMMENT.sub("", command.replace("\\\n", " "))
        if plain.startswith("quire ") and not (
            SHELL.search(QUOTED.sub("", plain)) or PAYLOAD.match(plain)
        ):
            return self._within(shlex.split(plain)[1:])
        after = self._directory / ".after"
        script = f"{command}\n_status=$?; pwd > {after}.pwd; env -0 > {after}.env; exit $_status"
        # Otherwise `quire no-such-command | tail -1` would pass.
        pipes = [] if LOOP.search(command) else ["-o", "pipefail"]
        # The page may have programs of its own, which come before.
        forked = "" if FRESH else f"{forked_quire()}{os.pathsep}"
        path = self._environment["PATH"].replace(PROGRAMS, f"{forked}{PROGRAMS}", 1)
        with subprocess.Popen(
            ["bash", *pipes, "-c", script],
            cwd=self._where,
            env={**self._environment, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            try:
                output, said = process.communicate(timeout=self._limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise PageError(
                    f"{self.page.name}: {command}: not done in {self._limit_s} s"
                ) from None
        pairs = Path(f"{after}.env").read_text(encoding="utf-8").split("\0")
        self._environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        self._environment["PATH"] = self._environment["PATH"].replace(forked, "")
        self._where = Path(Path(f"{after}.pwd").read_text(encoding="utf-8").rstrip("\n"))
        return process.returncode, output.decode(), said.decode()

    def _within(self, words: list[str]) -> tuple[int, str, str]:
        """Run a command of Quire's that needs no shell in this process, which is faster.

        Returns its exit status, standard output and standard error.
        """
        with (
            self._as_environment(),
            contextlib.chdir(self._where),
            interrupted_after(self._limit_s),
        ):
            done = CliRunner().invoke(cli, words, prog_name="quire")
        return done.exit_code, done.stdout, done.stderr

    def _start(self, command: str) -> tuple[subprocess.Popen[bytes], Path]:
        # Servers are in the tests' process group, so that a signal that ends the tests ends them.
        log = self._directory / f".server-{len(self._servers)}.log"
        plain = command.startswith("quire ") and not SHELL.search(QUOTED.sub("", command))
        with log.open("wb") as out, log.with_suffix(".err").open("wb") as err:
            quire = shutil.which("quire", path=self._environment["PATH"])
            if plain and quire == f"{PROGRAMS}/quire" and not FRESH:
                words = shlex.split(command)[1:]
                given: dict[str, Any] = {"cwd": self._where, "env": self._environment}
                given |= {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
                return ForkedServer(words, signal.SIGTERM, **given), log
            process: subprocess.Popen[bytes] = subprocess.Popen(
                ["bash", "-c", f"exec {command}" if "=" not in command.split()[0] else command],
                cwd=self._where,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                # Tests that a shell starts in the background ignore SIGINT, and their children too.
                preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            )
        return process, log

    def _wait(
        self, process: subprocess.Popen[bytes], log: Path, ready: Callable[[str], bool], what: str
    ) -> str:
        deadline = time.monotonic() + self._limit_s
        while not ready(said := log.read_text(encoding="utf-8")):
            if process.poll() is not None or time.monotonic() > deadline:
                why = log.with_suffix(".err").read_text(encoding="utf-8")
                raise PageError(f"{self.page.name}: {what}: status {process.poll()}\n{said}{why}")
            time.sleep(POLL_S)
        return said

    def _serve(self, one: Typed, command: str) -> None:
        """Start a server and wait for the line that it prints when it serves.

        The reader continues in another terminal.
        """
        process, log = self._start(COMMENT.sub("", command))
        self._servers.append((command, process))
        said = self._wait(process, log, lambda text: "\n" in text, command)
        self._environment["PRINTED"] = said.splitlines()[0]
        self._environment[f"SERVER_{len(self._servers)}"] = str(process.pid)
        if one.shown and not matches(self._meant(one.shown), said):
            self._differs(one, said)

    def _follow(self, one: Typed, command: str, once: str = "") -> None:
        """Run a command, and end it with Ctrl-C when it has printed what the page shows.

        With `once`, that shell command must succeed as well. A program may do more after it has
        printed, such as storing its position.
        """
        process, log = self._start(command)
        self._servers.append((command, process))
        shown = self._meant(one.shown)
        assert shown, f"{self._at(one.line)}: the page must show output before Ctrl-C"
        self._wait(process, log, lambda text: matches(shown, text), command)
        if once:
            self._wait(process, log, lambda text: self._execute(once)[0] == 0, once)
        process.send_signal(signal.SIGINT)
        assert process.wait(self._limit_s) in (0, 130), command

    def _end_servers(self, *, check: bool) -> None:
        """End the servers that the page has started, the last one first, each by its process id."""
        bad: list[str] = []
        for command, process in reversed(self._servers):
            if process.poll() is None:
                process.terminate()
            try:
                status = process.wait(self._limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(self._limit_s)
                bad.append(f"{command}: not stopped in {self._limit_s:g} s")
                continue
            if status not in (0, 130, -signal.SIGKILL, 137):
                bad.append(f"{command}: status {status}")
        if check and bad:
            raise PageError(f"{self.page.name}: {bad}")

    # -- what the page says, and what it is here -----------------------------------------------

    def _meant(self, text: str) -> str:
        return replaced(text, {said: self._expanded(meant) for said, meant in self._here.items()})

    def _expanded(self, text: str) -> str:
        return re.sub(r"\$(\w+)", lambda match: self._environment[match[1]], text)

    def _differs(self, one: Typed, output: str) -> None:
        raise PageError(
            f"{self._at(one.line)}: {one.command}\n-- the page shows\n{self._meant(one.shown)}"
            f"-- it said\n{output}"
        )

    def _at(self, line: int) -> str:
        return f"{self.page.name}:{line}"


@contextlib.contextmanager
def interrupted_after(limit_s: float) -> Iterator[None]:
    """Raise a TimeoutError in the block if it takes longer than `limit_s` seconds."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"not finished in {limit_s} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def matches(shown: str, output: str, numbers: bool = False) -> bool:
    """Return whether a command's output matches the output that the page shows.

    `...` matches anything, and at the end of a line also further lines. Spaces at the ends of lines
    do not count. With `numbers`, any numbers match, including singular and plural.
    """
    wanted, got = (
        "\n".join(line.rstrip() for line in text.rstrip().splitlines()) for text in (shown, output)
    )
    pattern = ".*".join(re.escape(part) for part in wanted.split("..."))
    pattern = pattern.replace("\\\n.*\\\n", "\\\n(?:.*\n)?")
    if numbers:
        pattern = re.sub(r"(\\ )*\d[\d,]*", r"\\s*\\d[\\d,]*", pattern)
        plural = r"(\\d\[\\d,\]\*\\ [a-z]+?)(ies|y|e?s)?(?![a-z])"
        pattern = re.sub(plural, r"\1(?:ies|y|e|e?s)?", pattern)
    return re.fullmatch(pattern, got, re.DOTALL) is not None


def replaced(text: str, meant: dict[str, str]) -> str:
    """Replace each key of `meant` in the text by its value, the longest key first.

    Nothing is replaced within a replaced value. The port that replaces 3184 may be 18080, although
    8080 is a port on pages too.
    """
    keys = "|".join(re.escape(said) for said in sorted(meant, key=len, reverse=True))
    return re.sub(keys, lambda match: meant[match[0]], text)


def ports_in_a_row(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    while True:
        first = free_ports(1)[0]
        if all(is_free(port) for port in range(first, first + count)):
            return first


def parse_quire(words: list[str]) -> None:
    """Parse the arguments of a `quire` command, without running it, and raise for wrong ones."""
    context = click.Context(cli, info_name="quire")
    command: click.Command = cli
    while isinstance(command, click.Group):
        if isinstance(command, DefaultGroup) and (not words or words[0].startswith("-")):
            words = [command._default, *words]
        name, inner, words = command.resolve_command(context, words)
        assert inner is not None, name
        command = inner
    try:
        command.make_context(command.name, list(words))
    except click.BadParameter as error:
        if "does not exist" not in str(error):  # The page's file or directory does not exist here.
            raise
