"""URIs as messages show them: without user, password and query."""

from __future__ import annotations

import pytest

from quire._runtime.uris import text_without_credentials, without_credentials


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("/a/b@c?d", "/a/b@c?d"),
        ("s3://bucket/a", "s3://bucket/a"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("foo://host:9000/a@b", "foo://host:9000/a@b"),
        ("zk://h1:2181,h2:2181/a@b", "zk://h1:2181,h2:2181/a@b"),
        ("foo://user:secret@host/x", "foo://host/x"),
        ("foo://secret@host/x", "foo://host/x"),
        ("foo://user:sec@ret@host/x", "foo://host/x"),
        ("s3://AK:sec/ret@bucket/x", "s3://bucket/x"),
        ("s3://AK:sec?re t@bucket/x?sig=secret", "s3://bucket/x"),
        ("s3://AK:sec/r@et@bucket/x", "s3://bucket/x"),
        ("gs://bucket/x?token=secret", "gs://bucket/x"),
        ("gs://bucket/x?secret", "gs://bucket/x"),
    ],
)
def test_a_uri_is_shown_without_credentials(uri: str, shown: str) -> None:
    assert without_credentials(uri) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no URI: a@b?c=d", "no URI: a@b?c=d"),
        ("type in URI: foo://u:secret@h/x; next", "type in URI: foo://h/x; next"),
        ("'foo://h/x?sig=secret'.", "'foo://h/x'."),
        ("(foo://h/x?sig=secret&a=secret), a", "(foo://h/x), a"),
        ("no file: s3a://u:secret@b/part-?.json", "no file: s3a://b/part-?.json"),
        ("jdbc:postgresql://h/db?password=secret is away", "jdbc:postgresql://h/db is away"),
        ("a://u:secret@h and b://u:secret@h", "a://h and b://h"),
    ],
)
def test_a_text_is_shown_without_the_credentials_in_it(text: str, shown: str) -> None:
    assert text_without_credentials(text) == shown


def test_credentials_are_removed_from_a_known_uri_with_spaces() -> None:
    uri = "s3://AK:sec ret@bucket/x?sig=sec ret"
    assert text_without_credentials(f"cannot parse '{uri}'", uri) == "cannot parse 's3://bucket/x'"
