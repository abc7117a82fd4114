"""Metadata URIs with a user and a password, which errors and logs would show."""

from __future__ import annotations

import pytest

from quire.codec.distributedlog.namespace_binding import NamespaceURI
from quire.errors import MetadataURIError
from quire.metadata.uri import parse_uri


@pytest.mark.parametrize(
    "uri",
    [
        "zk://user:secret@zk-1:2181/ledgers",
        "zk+hierarchical://zk-1:2181;user:secret@zk-2/ledgers",
        "zk+nothing://user:secret@zk-1/ledgers",
        "sqlite://user:secret@host/a.db",
        "etcd://user:secret@host/x",
        "zk://user:a/secret@zk-1:2181/ledgers",
        " zk+nothing://user:secret/@zk-1/ledgers",
        "http://user:a/secret@host/x",
    ],
)
def test_the_password_is_not_shown(uri: str) -> None:
    with pytest.raises(MetadataURIError, match="with a user or a password") as refused:
        parse_uri(uri)
    assert "secret" not in str(refused.value)
    assert "QUIRE_ZOOKEEPER_AUTH_FILE" in refused.value.remedy


def test_the_password_of_a_namespace_uri_is_not_shown() -> None:
    with pytest.raises(MetadataURIError, match="with a user or a password") as refused:
        NamespaceURI.parse("distributedlog://user:secret@zk-1:2181/a")
    assert "secret" not in str(refused.value)


def test_paths_and_roots_may_have_an_at_sign() -> None:
    assert parse_uri("sqlite:////a@b/c.db").path == "/a@b/c.db"
    assert parse_uri("zk://h1:2181,h2:2181/a@b").root == "/a@b"
