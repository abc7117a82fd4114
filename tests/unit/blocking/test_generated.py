"""The blocking API is complete and what scripts/make-blocking writes, and its old names work."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import quire
from quire import blocking
from quire.blocking.handles import Handle
from quire.client.datasets import datasets
from quire.statemachine import DurableDict, Follower, Leader
from quire.streams import (
    Appended,
    Namespace,
    Objects,
    Producer,
    StreamReader,
    StreamWriter,
    Subscription,
    Topic,
    TopicAppended,
    TopicReader,
    TopicWriter,
)
from quire.streams.objects.reader import ObjectReader

ROOT = Path(__file__).parents[3]
COUNTERPARTS = [
    quire.Client, quire.LedgerWriter, quire.CallerIdWriter, quire.LedgerReader, datasets.Datasets,
    Namespace, StreamWriter, Producer, Appended, StreamReader, Subscription, Objects, ObjectReader,
    Leader, Follower, DurableDict, Topic, TopicAppended, TopicReader, TopicWriter,
]  # fmt: skip
ONLY_ASYNCIO = {
    "Client": {"placement", "on_damage", "pool"},
    "Namespace": {"create", "metadata", "open"},
    "StreamReader": {"one_by_one", "find_life"},
    "Subscription": {"find_life"},
    "TopicReader": {"one_by_one"},
    "Appended": {"count", "index"},
    "DurableDict": {"open"},
}
"""Names of the asyncio API without a meaning between threads, or deprecated."""


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default) for one in found]


def test_the_generated_files_are_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "make-blocking", "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", COUNTERPARTS, ids=lambda kind: kind.__name__)
def test_every_blocking_class_has_the_names_and_parameters_of_its_counterpart(kind: type) -> None:
    made = getattr(blocking, kind.__name__)
    names = {name for name in dir(kind) if not name.startswith("_")}
    names -= ONLY_ASYNCIO.get(kind.__name__, set())
    assert names <= set(dir(made))
    for name in names:
        theirs = inspect.getattr_static(kind, name)
        if not inspect.isfunction(theirs):
            continue
        ours = getattr(made, name)
        assert parameters(ours) == parameters(theirs), name
        assert not inspect.iscoroutinefunction(ours), name
        assert ours.__doc__, name


def test_every_class_has_a_counterpart() -> None:
    made = {name for name in blocking.__all__ if inspect.isclass(getattr(blocking, name))}
    assert made == {kind.__name__ for kind in COUNTERPARTS}
    assert all(issubclass(getattr(blocking, name), Handle) for name in made)
    assert {*made, "connect"} == set(blocking.__all__)


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        ("quire.client.blocking", "connect", "quire.blocking"),
        ("quire.client.blocking", "LedgerReader", "quire.blocking"),
        ("quire.client.blocking_datasets", "BlockingDatasets", r"client\.datasets"),
        ("quire.streams.blocking", "Namespace", r"client\.namespace"),
        ("quire.streams.blocking", "StreamWriter", "quire.blocking"),
        ("quire.streams.blocking_objects", "BlockingObjects", r"client\.objects"),
    ],
)
def test_the_old_modules_warn(module: str, name: str, now: str) -> None:
    old = import_module(module)
    assert name in dir(old)
    with pytest.warns(DeprecationWarning, match=f"{module} is deprecated.*{now}") as warned:
        found = getattr(old, name)
    assert warned[0].filename == __file__
    assert name == "Namespace" or found is getattr(blocking, name, found)
    with pytest.raises(AttributeError, match="Nothing"):
        old.Nothing  # noqa: B018


def test_the_old_factories_open(client: blocking.Client) -> None:
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        from quire.client.blocking_datasets import BlockingDatasets
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        from quire.streams.blocking import Namespace as OldNamespace
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        from quire.streams.blocking_objects import BlockingObjects
    with OldNamespace.create(client, "/old") as made:
        assert isinstance(made, blocking.Namespace)
    with OldNamespace.open(client, "/old") as opened:
        assert opened.streams() == []
    assert BlockingDatasets(client).list_datasets() == []
    assert BlockingObjects(client, "bucket").bucket == "bucket"
