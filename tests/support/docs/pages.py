"""The fenced blocks of a page of documentation, and the comments about them.

    <!-- not run: needs root -->     the next block is only read: commands are parsed, files checked
    <!-- status: 1 -->               the last command of the next block ends with this status
    <!-- numbers: vary -->           what the next block shows has other numbers here
    <!-- ended: by Ctrl-C -->        the last command of the next block runs until it has shown
                                     what the page shows, and is then interrupted
    <!-- ended: by Ctrl-C once CHECK -->   the same, when the shell command CHECK succeeds as well
    <!-- run: console                commands (or python) that a reader need not see
    $ ...
    -->
    <!-- with: spark -->             the next block needs Spark: `tests/spark` runs it
    <!-- here: 10.0.0.7:3181 = $BOOKIE -->   from here on: a text of the page, and its value here

A block with a `title` is a file. It is written, and a later block uses it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PIECE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<more>[^\n]*)\n(?P<text>.*?)^(?P=indent)```[^\n]*$"
    r"|^ *<!-- (?P<what>not run|status|numbers|ended|here|run|with): (?P<words>.*?)-->",
    re.MULTILINE | re.DOTALL,
)
PAGE_NEEDS = re.compile(r"^<!-- page: ([\w, ]+) -->$", re.MULTILINE)
TITLE = re.compile(r"title=\"([^\"]+)\"")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page, to be run or only read."""

    line: int
    language: str
    text: str
    title: str = ""
    not_run: str = ""
    """The reason why the block is not run, or "" if it is."""
    status: int = 0
    hidden: bool = False
    spark: bool = False
    numbers: bool = False
    """Whether the numbers in the output may differ from those on the page."""
    interrupted: bool = False
    """Whether the last command is ended by Ctrl-C once it has printed what the page shows."""
    once: str = ""
    """A shell command that must succeed before Ctrl-C, or "" for none."""


@dataclass(frozen=True, slots=True)
class Here:
    """A text `said` of the page, and the text `meant` that replaces it in the test.

    Environment variables in `meant` are expanded.
    """

    said: str
    meant: str


def all_pages() -> list[Path]:
    """Return the paths of all pages of the site, beginning with the README."""
    top = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    return [*top, *sorted((ROOT / "docs").rglob("*.md"))]


def section(text: str, heading: str) -> str:
    """Return the text below a heading, up to the next one of the same or a higher level."""
    level = heading.split()[0]
    _, _, below = f"\n{text}".partition(f"\n{heading}\n")
    assert below, heading
    return re.split(rf"^#{{1,{len(level)}}} ", below, maxsplit=1, flags=re.MULTILINE)[0]


def needs(page: Path) -> set[str]:
    """Return what the blocks of a page need: "spark", and "long" if they take long."""
    found = PAGE_NEEDS.search(page.read_text(encoding="utf-8"))
    return set(found[1].split(", ")) if found else set()


def pieces(page: Path) -> Iterator[Block | Here]:
    text = page.read_text(encoding="utf-8")
    not_run, status, spark, numbers, interrupted, once = "", 0, False, False, False, ""
    for match in PIECE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        words = match["words"]
        if match["what"] == "not run":
            not_run = words.strip()
            assert not_run, f"{page.name}:{line}: `not run` needs a reason"
        elif match["what"] == "with":
            assert words.strip() == "spark", f"{page.name}:{line}: unknown `with: {words}`"
            spark = True
        elif match["what"] == "status":
            status = int(words)
        elif match["what"] == "numbers":
            assert words.strip() == "vary", f"{page.name}:{line}: unknown `numbers: {words}`"
            numbers = True
        elif match["what"] == "ended":
            how, _, once = words.strip().partition(" once ")
            assert how == "by Ctrl-C", f"{page.name}:{line}: unknown `ended: {words}`"
            interrupted = True
        elif match["what"] == "here":
            for pair in words.strip().splitlines():
                said, _, meant = pair.strip().partition(" = ")
                assert meant, f"{page.name}:{line}: `{pair}` is not SAID = MEANT"
                yield Here(said, meant)
        elif match["what"] == "run":
            language, _, code = words.partition("\n")
            code = textwrap.dedent(code)
            yield Block(line + 1, language.strip(), code, status=status, hidden=True, spark=spark)
            status, spark = 0, False
        else:
            title = TITLE.search(match["more"])
            code = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
            named = title[1] if title else ""
            yield Block(
                line + 1, match["language"], code, named, not_run, status,
                spark=spark, numbers=numbers, interrupted=interrupted, once=once,
            )  # fmt: skip
            not_run, status, spark, numbers, interrupted, once = "", 0, False, False, False, ""


def blocks(page: Path) -> list[Block]:
    """Return the blocks that a reader sees."""
    return [piece for piece in pieces(page) if isinstance(piece, Block) and not piece.hidden]


@dataclass(frozen=True, slots=True)
class Typed:
    """A command, and the output that the page shows below it."""

    line: int
    command: str
    shown: str
    numbers: bool = False


def typed(block: Block) -> list[Typed]:
    """Return the commands of a console block, each with the output that the page shows.

    A line that ends with a backslash continues in the next one. A line that begins a document
    (`<<'END'`) continues to the line that ends it.
    """
    found: list[Typed] = []
    lines = block.text.splitlines()
    number = 0
    while number < len(lines):
        at, line = number, lines[number]
        number += 1
        if not line.startswith(("$ ", "# ") if block.not_run else "$ "):
            assert found, f"line {block.line + at}: there is output without a command"
            last = found[-1]
            found[-1] = Typed(last.line, last.command, f"{last.shown}{line}\n", block.numbers)
            continue
        command = [line[2:]]
        document = re.search(r"<<\s*'?(\w+)'?", line)
        while number < len(lines) and (
            command[-1].endswith("\\") or (document and command[-1] != document[1])
        ):
            command.append(lines[number])
            number += 1
        found.append(Typed(block.line + at, "\n".join(command), ""))
    return found
