"""The man page and the completion files are current, right, and a part of the wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import click
import pytest

from quire.configuration.fields import keys
from tests.support.cli import ALL

ROOT = Path(__file__).resolve().parents[4]
SHARE = ROOT / "deploy" / "share"
MAN = SHARE / "man" / "man1" / "quire.1"
FILES = {
    "bash": SHARE / "bash-completion" / "completions" / "quire",
    "zsh": SHARE / "zsh" / "site-functions" / "_quire",
    "fish": SHARE / "fish" / "vendor_completions.d" / "quire.fish",
}
SECTIONS = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "COMMANDS"]
LAST = ["ENVIRONMENT", "FILES", "EXIT STATUS", "EXAMPLES", "SEE ALSO"]


def run(*command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT, **more
    )  # type: ignore[call-overload, no-any-return]


def test_the_generated_files_are_current() -> None:
    done = run(sys.executable, ROOT / "scripts" / "make-man", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_has_the_usual_sections_and_every_command() -> None:
    text = MAN.read_text(encoding="utf-8")
    sections = re.findall(r"^\.SH (.+)$", text, re.MULTILINE)
    assert sections[:5] == SECTIONS
    assert sections[-5:] == LAST
    titles = [one.replace("\\-", "-") for one in re.findall(r"^\.SS \\fB(.+?)\\fR", text, re.M)]
    wanted = [
        "quire " + " ".join(path)
        for path, command in ALL.items()
        if not isinstance(command, click.Group) and not command.hidden
    ]
    assert titles == wanted
    assert len(titles) > 100


def test_the_variables_of_the_page_exist() -> None:
    text = MAN.read_text(encoding="utf-8").partition(".SH ENVIRONMENT")[2].partition(".SH ")[0]
    named = set(re.findall(r"^\\fB(QUIRE_\w+)\\fR$", text, re.MULTILINE)) - {"QUIRE_TABLE_KEY"}
    assert len(named) > 8
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    known = {key.environment for key in keys().values()}
    assert {one for one in named if one not in known and f'"{one}"' not in source} == set()


def test_man_page_tools_accept_the_page(tmp_path: Path) -> None:
    programs = {
        "mandoc": ["-Tlint"],
        "groff": ["-ww", "-man", "-Tutf8"],
        "man": ["--warnings", "-l"],
    }
    for name, options in programs.items():
        if (program := shutil.which(name)) is not None:
            done = run(program, *options, MAN)
            said = done.stdout if name == "mandoc" else ""
            assert (done.returncode, said, done.stderr) == (0, "", ""), name
            broken = tmp_path / "quire.1"
            broken.write_text(MAN.read_text(encoding="utf-8") + ".XX unknown\n.TP\n")
            worse = run(program, *options, broken)
            assert worse.stdout != done.stdout or worse.stderr, name  # It really checks.


@pytest.mark.parametrize("shell", sorted(FILES))
def test_shells_load_their_completion(shell: str) -> None:
    file = FILES[shell]
    assert "_QUIRE_COMPLETE" in file.read_text(encoding="utf-8")
    load = {
        "bash": f". {file}; complete -p quire",
        "zsh": f"autoload -U compinit; compinit -D; . {file}; print $_comps[quire]",
        "fish": f"source {file}; complete -c quire",
    }
    if (program := shutil.which(shell)) is not None:
        done = run(program, "-c", load[shell])
        assert done.returncode == 0, done.stderr
        assert "quire_completion" in done.stdout
        assert done.stderr == ""


def test_bash_completes_commands_with_the_file() -> None:
    """It is not the text of the file that counts, but what a user gets."""
    program = Path(sys.executable).parent
    script = (
        f"PATH={program}:$PATH; . {FILES['bash']}; COMP_WORDS=(quire ledger re); COMP_CWORD=2; "
        "_quire_completion quire; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = run(shutil.which("bash") or "bash", "-c", script)
    assert done.stdout.split() == ["read", "recover"], done.stderr


def test_a_wheel_contains_the_man_page_and_completions(tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        for path in SHARE.rglob("*"):
            if path.is_file():
                name = path.relative_to(SHARE).as_posix()
                [found] = [
                    one for one in file.namelist() if one.endswith(f".data/data/share/{name}")
                ]
                assert file.read(found) == path.read_bytes()
