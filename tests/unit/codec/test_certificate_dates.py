"""The dates of certificates, read without OpenSSL and compared with what `cryptography` reads."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from quire.codec.certificate_dates import BadCertificateError, ValidDates, valid_dates
from tests.support.network.certificates import PAST, Authority


def der_of(path: str) -> bytes:
    text = Path(path).read_text(encoding="ascii")
    end = "-----END CERTIFICATE-----\n"
    return ssl.PEM_cert_to_DER_cert(text.partition(end)[0] + end)


@pytest.mark.parametrize("year", [2021, 2049, 2050, 9999])
def test_certificate_dates_equal_those_that_cryptography_reads(tmp_path: Path, year: int) -> None:
    """From 2050 on, certificates have their dates in another form."""
    ends = datetime.datetime(year, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
    authority = Authority(tmp_path)
    for der in (der_of(authority.issue("bookie", ends=ends).certificate), der_of(authority.ca)):
        known = x509.load_der_x509_certificate(der)
        begins, until = known.not_valid_before_utc, known.not_valid_after_utc
        assert valid_dates(der) == ValidDates(
            int(begins.timestamp()) * 1000, int(until.timestamp()) * 1000
        )
    issued = valid_dates(der_of(authority.issue("bookie", ends=ends).certificate))
    assert issued.begins_ms == PAST.timestamp() * 1000
    assert issued.ends_ms == ends.timestamp() * 1000


def test_bytes_that_are_not_a_certificate_are_refused(tmp_path: Path) -> None:
    der = der_of(Authority(tmp_path).ca)
    for length in range(200):  # the dates come later
        with pytest.raises(BadCertificateError):
            valid_dates(der[:length])
    for other in (b"", b"\x30\x03\x02\x01\x01", b"\x30\x80\x00\x00", b"no certificate"):
        with pytest.raises(BadCertificateError):
            valid_dates(other)


def test_an_invalid_certificate_date_is_refused(tmp_path: Path) -> None:
    der = der_of(Authority(tmp_path).issue("bookie", expired=True).certificate)
    assert der.count(b"200102000000Z") == 1
    with pytest.raises(BadCertificateError, match="is not a date"):
        valid_dates(der.replace(b"200102000000Z", b"201302000000Z"))
