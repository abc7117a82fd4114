"""URIs without their credentials, as messages and results show them."""

from __future__ import annotations

import re

_USER = re.compile(
    r"""^([a-z][a-z0-9+.\-]*://)
    (?: [^/?\#]*@                               # user, user:password or the two keys of an S3 store
      | [^/?\#@:]+:(?!\d+(?:[/?\#,;]|$))[^@]*@  # a password with / or ?; digits would be a port
    )+""",
    re.IGNORECASE | re.VERBOSE,
)
_IN_TEXT = re.compile(r"[a-z][a-z0-9+.\-]*://[^\s'\"<>]+", re.IGNORECASE)
_QUERY_IN_TEXT = re.compile(r"\?[^?]*=.*?(?=[.,;:)\]]*$)")
"""A query, without the punctuation of the sentence around it.

A question mark without an equals sign is the sign of a pattern.
"""


def has_credentials(uri: str) -> bool:
    """Return whether a URI has a user or a password, also one with a slash that is not encoded."""
    return _USER.match(uri) is not None


def without_credentials(uri: str) -> str:
    """Return a URI without its user, password and query. A text without :// is not changed.

    A password with a slash, which should have been encoded, is removed too.
    """
    if "://" not in uri:
        return uri
    return _USER.sub(r"\1", uri).partition("?")[0]


def text_without_credentials(text: str, uri: str = "") -> str:
    """Return the message of a library, with the credentials removed from each URI in it.

    `uri` is the URI that the caller has given to the library. It is found even if it has spaces or
    quotes.
    """
    if uri:
        text = text.replace(uri, without_credentials(uri))
    return _IN_TEXT.sub(lambda found: _QUERY_IN_TEXT.sub("", _USER.sub(r"\1", found[0])), text)
