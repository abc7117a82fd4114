"""Protobuf's text format refuses the same escape sequences as Java's parser."""

from __future__ import annotations

import pytest

from quire.codec.metadata.formats_pb2 import LedgerMetadataFormat
from quire.codec.metadata.protobuf_text import TextError, parse_text


def password_in(text: bytes) -> bytes:
    return parse_text(b'password: "' + text + b'"\n', LedgerMetadataFormat()).password


@pytest.mark.parametrize("text", [rb"\:", rb"\8", rb"\N{BULLET}", rb"\777", rb"\x", rb"\xg"])
def test_a_wrong_escape_is_an_error_and_no_warning(text: bytes) -> None:
    with pytest.raises(TextError):
        password_in(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (rb"\\:", b"\\:"),
        (rb"\377\0", b"\xff\0"),
        (rb"\x41\"\'\n", b"A\"'\n"),
        (rb"\\777", b"\\777"),
    ],
)
def test_escape_sequences_are_decoded_as_in_java(text: bytes, found: bytes) -> None:
    assert password_in(text) == found
