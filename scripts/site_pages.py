"""The hooks of mkdocs that complete the site.

They add the documents at the top of the repository, the files that pages link to, and the parts of
the reference that are generated from the code. mkdocs calls the functions `on_*`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import click
from markdown import Extension, Markdown
from markdown.blockprocessors import build_block_parser
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from quire.cli.main import cli

ROOT = Path(__file__).resolve().parent.parent
TOP = {
    "README.md": "project.md",  # docs/README.md is the first page of the site
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "SECURITY.md": "SECURITY.md",
    "CODE_OF_CONDUCT.md": "CODE_OF_CONDUCT.md",
}
CODECS = ROOT / "src" / "quire" / "codec"
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect))[^>]*\bhref=[\"']?((?:https?:)?//[^\"'\s>]+)"
)
INHERITED = "    options:\n      inherited_members: true"
"""Handles inherit most of their methods from classes that are not public."""
COLUMNS = 76
"""The width of a line of help that a page shows without scrolling."""
FENCED = re.compile(r"^( *)(```).*?^ *\2[^\n]*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)

MODULES = {
    "python": (
        "quire",
        "quire",
        "Programs import these names from `quire`.",
        ("quire.errors", "quire.blocking"),
    ),
    "blocking": ("quire.blocking", "quire.blocking", "The API without `await`.", ()),
    "streams": ("quire.streams", "quire.streams", "Streams, positions and objects.", ()),
    "spark": ("quire.spark", "quire.spark", "Helpers for sessions of Spark.", ()),
    "testing": ("quire.testing", "quire.testing", "For tests of programs that use Quire.", ()),
}
"""For each page of the reference: title, package, first line, and names with another page."""

FIRST = ("connect", "Client", "LedgerWriter", "LedgerReader", "CallerIdWriter", "Entry", "EntryRun")
"""The names that a reader looks for first. The others follow in the order of `__all__`."""


class ListsAsOnGitHub(Extension):
    """Continue a list item after an indent of two columns, as other Markdown viewers do.

    Python's Markdown wants four columns. This extension must be the first one, because it makes
    the block parser anew.
    """

    def extendMarkdown(self, md: Markdown) -> None:
        md.tab_length = 2
        md.parser = build_block_parser(md)  # Its parts have read the length already.


class CodeAsOnGitHub(Extension):
    """Begin an indented code block after four columns nevertheless. This is the last extension."""

    def extendMarkdown(self, md: Markdown) -> None:
        self._md = md
        md.registerExtension(self)

    def reset(self) -> None:
        self._md.parser.blockprocessors["code"].tab_length = 4


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    extensions: list[Any] = config.markdown_extensions
    extensions.insert(0, ListsAsOnGitHub())
    extensions.append(CodeAsOnGitHub())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    def page(name: str, text: str) -> None:
        files.append(File.generated(config, name, content=text))

    for source, name in TOP.items():
        page(name, (ROOT / source).read_text(encoding="utf-8"))
    for path in linked_files():
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    page("deploy.md", listing(ROOT / "deploy"))
    for name, (title, package, words, apart) in MODULES.items():
        page(f"reference/{name}.md", "\n".join(module_page(title, package, words, apart)))
    page(
        "reference/errors.md",
        "# quire.errors\n\n::: quire.errors\n    options:\n      show_root_heading: false\n"
        "      show_root_toc_entry: false\n",
    )
    page("reference/options.md", "\n".join(options_page()))
    page("reference/formats.md", "\n".join(formats_page()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Change links that are right in the repository into links that are right in the site."""
    name = page.file.src_uri
    if name == "README.md":  # The landing page uses the whole width.
        page.meta["hide"] = ["navigation", "toc"]
    sources = {made: source for source, made in TOP.items()}
    source = PurePosixPath(sources.get(name, f"docs/{name}"))

    def new_target(match: re.Match[str]) -> str:
        target = resolved(source.parent / match[1])
        if target in TOP:
            return relative(TOP[target], name)
        if target == "deploy":
            return relative("deploy.md", name)
        return relative(target.removeprefix("docs/"), name)

    pieces, behind = [], 0
    for code in FENCED.finditer(markdown):
        pieces += [LINK.sub(new_target, markdown[behind : code.start()]), code[0]]
        behind = code.end()
    return "".join([*pieces, LINK.sub(new_target, markdown[behind:])])


def resolved(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def relative(target: str, page: str) -> str:
    return "../" * page.count("/") + target


def linked_files() -> Iterator[Path]:
    """Return the files of the repository that a page links to and that are not pages."""
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / source for source in TOP)]
    found = {
        (page.parent / target).resolve()
        for page in pages
        for target in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    }
    for path in sorted(found | set((ROOT / "deploy").rglob("*"))):
        if path.is_file() and path.suffix != ".md" and not path.is_relative_to(ROOT / "docs"):
            yield path


def listing(directory: Path) -> str:
    rows = [
        f"- [{path.relative_to(ROOT)}]({path.relative_to(ROOT)})"
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    ]
    return "\n".join(["# Files for deployment", "", *rows, ""])


def on_post_build(config: MkDocsConfig) -> None:
    """Fail if a page loads anything from elsewhere: the site must work without a network."""
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        elsewhere = LOADED.findall(page.read_text(encoding="utf-8"))
        if elsewhere:
            raise PluginError(f"{page.name} loads a resource from elsewhere: {elsewhere[0]}")


# -- the reference ------------------------------------------------------------------------------


def module_page(title: str, package: str, words: str, apart: tuple[str, ...]) -> Iterator[str]:
    """Return a page with each public name of a package and its docstring."""
    tree = ast.parse((ROOT / "src" / package.replace(".", "/") / "__init__.py").read_text())
    yield from (f"# {title}", "", words, "")
    for name in public_names(tree):
        if f"{package}.{name}" not in apart:
            yield from (f"::: {package}.{name}", INHERITED, "")


def public_names(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == ["__all__"]:
            names = list(ast.literal_eval(node.value))
            first = [name for name in FIRST if name in names]
            return first + [name for name in names if name not in first]
    raise SystemExit("a package of the reference has no __all__")


def options_page() -> Iterator[str]:
    """Return a page with the help of every command, as `--help` prints it."""
    yield "# Every option"
    yield ""
    yield "This is what `quire COMMAND --help` prints. [Commands](commands.md) says what it does."
    for path, context in commands(click.Context(cli, info_name="quire")):
        yield from ("", f"## {path}", "", "```text", context.get_help(), "```")


def commands(context: click.Context) -> Iterator[tuple[str, click.Context]]:
    context.max_content_width = context.terminal_width = COLUMNS
    command = context.command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from commands(click.Context(inner, parent=context, info_name=name))
    else:
        yield context.command_path, context


def formats_page() -> Iterator[str]:
    """Return a page with the byte tables from the modules that implement them."""
    yield "# Every byte"
    yield ""
    yield (
        "Each format is described at the head of the module that reads and writes it, in "
        "`src/quire/codec`. "
        "[The protocol](protocol.md), [metadata](metadata.md) and "
        "[the format of streams](streams-format.md) say what it means."
    )
    for path in sorted(CODECS.rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        if text and path.stem != "__init__" and not path.stem.endswith("_pb2"):
            yield from ("", f"## {path.stem}", "", "```text", text, "```")
