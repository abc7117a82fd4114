"""Every fenced block of every page is run as a reader would, and its output is compared.

Blocks that need Spark are only read here. `tests/spark/setups/test_pages.py` runs them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quire.testing.cluster import LocalCluster
from tests.support.docs import page_runner
from tests.support.docs.page_runner import PageError, PageRunner, matches
from tests.support.docs.pages import all_pages, blocks, needs, typed

NOT_RUN_MAX = 28  # Nine of them need a container engine, Kubernetes, YARN or a cluster of Spark.
"""Blocks that are only read, because they need root, Apache's servers, a package index ... One
more needs a reason that is as good."""
RUN_MIN = 130
"""The least number of blocks that are run on all pages, which existed when this was written."""


def run(page: Path, directory: Path, uri: str) -> int:
    environment = {**os.environ, "QUIRE_METADATA": uri}
    for name in ("QUIRE_CONFIG", "QUIRE_DEBUG", "QUIRE_PLACEMENT", "QUIRE_NAMESPACE"):
        environment.pop(name, None)
    with PageRunner(page, directory, environment, names={"uri": uri}) as runner:
        runner.run()
        return runner.ran


PAGES = [
    pytest.param(page, marks=pytest.mark.long if "long" in needs(page) else ())
    for page in all_pages()
    if "spark" not in needs(page) and blocks(page)
]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_code_on_a_page_does_what_the_page_shows(
    page: Path, tmp_path: Path, quire_cluster: LocalCluster
) -> None:
    wanted = sum(not block.not_run and not block.spark for block in blocks(page))
    assert run(page, tmp_path, quire_cluster.uri) == wanted


@pytest.mark.parametrize(
    "page", [one for one in all_pages() if "spark" in needs(one)], ids=lambda page: page.name
)
def test_spark_blocks_are_found(page: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "QUIRE_METADATA": "sqlite:////not/asked.db"}
    with PageRunner(page, tmp_path, environment) as runner:
        runner.read()


def test_few_blocks_are_skipped_and_each_states_the_reason() -> None:
    every = [(page, block) for page in all_pages() for block in blocks(page)]
    not_run = [
        f"{page.name}:{block.line}: {block.not_run}" for page, block in every if block.not_run
    ]
    assert len(not_run) <= NOT_RUN_MAX, "\n".join(not_run)
    assert len(every) - len(not_run) >= RUN_MIN


def test_no_code_is_in_an_indented_block() -> None:
    """Indented blocks are not run, so commands and programs belong between fences."""
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark")
    for page in all_pages():
        for token in reader.parse(page.read_text(encoding="utf-8")):
            if token.type == "code_block":
                first = token.content.split(maxsplit=1)[0]
                assert first not in ("quire", "$", "import", "from", "make"), (page, token.content)


# -- the runner itself: that it can fail ---------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```console\n$ false\n```\n", "status 1, not 0"),
        ("```console\n$ echo one\ntwo\n```\n", "the page shows"),
        ("```console\n$ quire ledger lst | cat\n```\n", "status 2, not 0"),
        ("<!-- status: 1 -->\n```console\n$ true\n```\n", "status 0, not 1"),
        ("```console\n$ pip install x\n```\n", "changes this machine"),
        ("```python\nassert 1 == 2\n```\n", "AssertionError"),
        ("```python\nimport asyncio\n\nawait asyncio.sleep(0)\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```toml\n[bookie]\nsegmentbytes = 1\n```\n", "segment_bytes"),
        ("```ini\n[Nonsense]\na=b\n```\n", "Nonsense"),
        ("```rust\nfn main() {}\n```\n", "cannot run the language"),
        ("```text\n$ quire local\n```\n", "this is code"),
        ("<!-- ended: by Ctrl-C -->\n```console\n$ echo one\ntwo\n```\n", "status 0"),
        ("<!-- not run: why -->\n```console\n$ quire ledger write --no-such\n```\n", "--no-such"),
        ("<!-- not run: why -->\n```console\n$ make no-such-target\n```\n", "no-such-target"),
    ],
)
def test_an_incorrect_page_fails(tmp_path: Path, text: str, said: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(Exception, match=said):
        run(page, tmp_path, "sqlite:////nowhere.db")


def test_a_server_that_does_not_stop_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page may kill one itself; that the runner had to is another thing."""
    monkeypatch.setattr(page_runner, "LIMIT_S", 1.0)
    deaf = tmp_path / "bin" / "quire"
    deaf.parent.mkdir()
    deaf.write_text("#!/bin/bash\ntrap '' TERM\necho serves\nexec sleep 60\n")
    deaf.chmod(0o755)
    page = tmp_path / "page.md"
    page.write_text("```console\n$ export PATH=$PAGE/bin:$PATH\n$ quire local\n```\n")
    with pytest.raises(PageError, match="not stopped in 1 s"):
        run(page, tmp_path, "sqlite:////nowhere.db")


def test_placeholders_on_a_page_are_translated(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- here: zk1 = $PAGE -->\n```console\n$ export A=1\n$ cd /\n```\n\n"
        '```python title="a.py"\nprint(3 - 1)\n```\n<!-- run: console\n$ cd zk1\n-->\n\n'
        "```console\n$ python a.py; echo $A; pwd\n2\n1\nzk1\n```\n"
    )
    assert run(page, tmp_path, "") == 3


def test_a_translated_port_is_not_translated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3184 is 18080 here, which holds 8080, and that is 18082, which holds 8082."""
    monkeypatch.setattr(page_runner, "ports_in_a_row", lambda count: 18_077)
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- here: PORT = 3184 -->\n```console\n$ echo 3184 18080 | cut -c 1-5\n3184\n"
        "$ echo PORT\nPORT\n$ test PORT = $((18070 + 10))\n```\n"
    )
    assert run(page, tmp_path, "") == 1


def test_ctrl_c_ends_a_command_after_its_expected_output(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ echo \"trap 'echo gone > end; exit 130' INT; echo one\" > wait.sh\n"
        "$ echo 'while :; do sleep 0.1; done' >> wait.sh\n```\n\n"
        "<!-- ended: by Ctrl-C -->\n```console\n$ bash wait.sh\none\n```\n\n"
        "```console\n$ cat end\ngone\n```\n"
    )
    assert run(page, tmp_path, "") == 3


def test_ctrl_c_waits_until_a_check_succeeds(tmp_path: Path) -> None:
    """A program printed a line, and was interrupted before it had stored its position."""
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ echo \"trap 'exit 130' INT; echo one; echo 1 > tries\" > wait.sh\n"
        "$ echo 'while :; do sleep 0.1; done' >> wait.sh\n"
        "$ echo 'echo more >> tries; grep -c more tries | grep -q 3' > check.sh\n```\n\n"
        "<!-- ended: by Ctrl-C once test -s tries && bash check.sh -->\n"
        "```console\n$ bash wait.sh\none\n```\n\n"
        "```console\n$ grep -c more tries\n3\n```\n"
    )
    assert run(page, tmp_path, "") == 3


def test_output_matches_with_ellipses() -> None:
    assert matches("a ... c\n", "a b c\n")
    assert matches("a\n...\nd\n", "a\nb\nc\nd\n")
    assert matches("a\n...\nd\n", "a\nd\n")
    assert not matches("a\n...\nd\n", "a\nbd\n")
    assert not matches("a\n", "a\nb\n")
    assert not matches("a 1\n", "a 2\n")
    assert matches("a 1,000 b\n", "a 23 b\n", numbers=True)
    assert not matches("a 1 b\n", "a 1 c\n", numbers=True)
    assert matches("1 run, 2 entries\n", "3 runs, 1 entry\n", numbers=True)
    assert not matches("1 run\n", "1 runs\n")
    assert not matches("1 run\n", "2 runners\n", numbers=True)


def test_commands_continue_on_further_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo \\\n  two\ntwo\n$ cat <<'END'\n$ x\nEND\n$ x\n```\n")
    [block] = blocks(page)
    assert [one.command for one in typed(block)[:2]] == ["echo \\\n  two", "cat <<'END'\n$ x\nEND"]
    with pytest.raises(AssertionError, match="output without a command"):
        typed(type(block)(1, "console", "shown\n"))
