"""Names that Spark's code imports as text, which no other check follows when a module moves."""

from __future__ import annotations

import pytest

from quire.spark import jobs, session


@pytest.mark.parametrize("name", jobs.__all__)
def test_every_public_name_of_the_jobs_can_be_imported(name: str) -> None:
    assert getattr(jobs, name) is not None


@pytest.mark.parametrize("module", ["source", "streams.lag"])
def test_the_lazily_imported_modules_of_a_session_exist(module: str) -> None:
    assert session._import(module) is not None
