"""The argument and the output that the commands on datasets share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from quire.cli.common.completion import complete_datasets
from quire.cli.common.options import Command, checked

if TYPE_CHECKING:
    from quire.client.datasets.datasets import Dataset


def check_name(text: str) -> str:
    """Return the name of a dataset. Raises UsageError if it is invalid."""
    from quire.client.datasets.format import check_dataset_name

    return check_dataset_name(text)


def name_argument(*, required: bool = True) -> Callable[[Command], Command]:
    """Return the argument NAME. Its value is None if it is optional and not given."""
    return click.argument(
        "name",
        metavar="NAME" if required else "[NAME]",
        required=required,
        callback=checked(check_name),
        shell_complete=complete_datasets,
    )


def dataset_as_json(dataset: Dataset) -> dict[str, Any]:
    """Return the JSON that the commands print for a dataset."""
    from quire.client.datasets import as_json

    return {**as_json.summary(dataset), **as_json.columns(dataset)}
