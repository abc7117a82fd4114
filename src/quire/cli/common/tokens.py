"""The tokens of HTTP servers that commands read from files."""

from __future__ import annotations

from pathlib import Path

import click

from quire._runtime.secret_files import exposure_of
from quire.errors import UsageError


def token_in(file: str | None) -> str:
    """Return the token in a file, or "" without a file.

    Raises `click.UsageError` if others can read the file, or if it contains no token, and `OSError`
    if it cannot be read.
    """
    from quire.http.server.security import check_token

    if file is None:
        return ""
    context = click.get_current_context()
    if problem := exposure_of(file):
        raise click.UsageError(problem, context)
    try:
        return check_token(Path(file).read_text(encoding="ascii", errors="replace"), file)
    except UsageError as error:
        raise click.UsageError(str(error), context) from None
