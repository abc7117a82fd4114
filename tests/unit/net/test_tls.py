"""TLS contexts from files: refusals, changes of files, and roles in certificates."""

from __future__ import annotations

import datetime
import os
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from quire._runtime.event_log import level_of
from quire._runtime.metrics import exposition
from quire.codec.wire.certificate import is_authorized, organizational_unit, roles_of
from quire.config import TlsClientConfig, TlsServerConfig
from quire.errors import TlsConfigError
from quire.net.certificates import (
    CertificateExpiry,
    CertificateFile,
    certificate_file,
    expiries,
    expiry_metric,
)
from quire.net.tls import MAX_FILE_BYTES, client_context, client_tls, server_context, server_tls
from tests.support.network.certificates import Authority, Files

NO_CERTIFICATE = "holds no certificate in PEM format"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def own(authority: Authority) -> Files:
    return authority.issue("bookie")


def server(own: Files, **more: object) -> TlsServerConfig:
    config = TlsServerConfig(own.certificate, own.private_key)
    return replace(config, **more)  # type: ignore[arg-type]


# -- contexts ---------------------------------------------------------------------------------


def test_a_server_accepts_tls_1_2_or_later_without_session_tickets(own: Files) -> None:
    context = server_context(server(own))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.maximum_version == ssl.TLSVersion.MAXIMUM_SUPPORTED
    assert context.verify_mode == ssl.CERT_NONE
    assert context.num_tickets == 0
    assert context.options & ssl.OP_NO_RENEGOTIATION


@pytest.mark.parametrize(
    ("wanted", "mode"), [("optional", ssl.CERT_OPTIONAL), ("required", ssl.CERT_REQUIRED)]
)
def test_a_server_requests_client_certificates_if_configured(
    authority: Authority, own: Files, wanted: str, mode: int
) -> None:
    context = server_context(server(own, ca=authority.ca, client_certificates=wanted))
    assert context.verify_mode == mode
    assert len(context.get_ca_certs()) == 1
    with pytest.raises(TlsConfigError, match="no authority that signs them is configured"):
        server_context(server(own, client_certificates=wanted))


def test_a_client_verifies_certificates_by_default(authority: Authority, own: Files) -> None:
    config = TlsClientConfig(ca=authority.ca)
    context = client_context(config)
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    lenient = client_context(replace(config, verify_host_name=False))
    assert lenient.verify_mode == ssl.CERT_REQUIRED
    assert not lenient.check_hostname
    assert client_context(TlsClientConfig()).verify_mode == ssl.CERT_REQUIRED


def test_one_file_may_hold_certificate_and_key(tmp_path: Path, own: Files) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(Path(own.private_key).read_bytes() + Path(own.certificate).read_bytes())
    both.chmod(0o600)
    server_context(TlsServerConfig(str(both)))


def test_a_key_that_everybody_can_read_is_refused(own: Files) -> None:
    Path(own.private_key).chmod(0o644)
    with pytest.raises(TlsConfigError, match=r"can read .* \(mode 0644\): chmod 600"):
        server_context(TlsServerConfig(own.certificate, own.private_key))


def test_a_file_that_is_too_large_is_refused_and_not_cut(
    authority: Authority, own: Files, tmp_path: Path
) -> None:
    """A certificate after the limit is not ignored."""
    large = tmp_path / "large.pem"
    pem = Path(authority.ca).read_bytes()
    large.write_bytes(pem + b"#" * (MAX_FILE_BYTES - len(pem) - 1) + b"\n")
    client_context(TlsClientConfig(ca=str(large)))
    with large.open("ab") as file:
        file.write(b"\n")
    with pytest.raises(TlsConfigError, match=r"large.pem is larger than 4 MiB"):
        client_context(TlsClientConfig(ca=str(large)))
    with pytest.raises(TlsConfigError, match=r"large.pem is larger than 4 MiB"):
        server_context(TlsServerConfig(own.certificate, str(large)))


def test_files_that_cannot_be_used_are_named(
    tmp_path: Path, authority: Authority, own: Files
) -> None:
    other = authority.issue("other")
    empty = tmp_path / "empty.pem"
    empty.touch()
    cut = tmp_path / "cut.pem"
    cut.write_bytes(Path(own.certificate).read_bytes()[:400])
    missing = str(tmp_path / "missing.pem")
    for config, message in [
        (server(own, certificate=missing), "missing.pem cannot be read: No such file"),
        (server(own, private_key=missing), "missing.pem cannot be read: No such file"),
        (server(own, private_key=str(tmp_path)), "cannot be read: Is a directory"),
        (server(own, certificate=str(empty)), f"empty.pem {NO_CERTIFICATE}"),
        (server(own, certificate=str(cut)), r"cut\.pem and private key .* cannot be used"),
        (server(own, private_key=own.certificate), "holds no private key in PEM format"),
        (server(own, private_key=other.private_key), "other.key does not belong to the cert"),
        (server(own, client_certificates="optional", ca=missing), "missing.pem cannot be read"),
    ]:
        with pytest.raises(TlsConfigError, match=message):
            server_context(config)
    for client, message in [
        (TlsClientConfig(ca=missing), "missing.pem cannot be read"),
        (TlsClientConfig(ca=own.private_key), NO_CERTIFICATE),
        (TlsClientConfig(ca=str(cut)), r"authority file .*cut\.pem cannot be used"),
        (TlsClientConfig(private_key=own.private_key), "without a certificate"),
    ]:
        with pytest.raises(TlsConfigError, match=message):
            client_context(client)


def test_encrypted_keys_need_a_password_file(tmp_path: Path, own: Files) -> None:
    key = serialization.load_pem_private_key(Path(own.private_key).read_bytes(), None)
    Path(own.private_key).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    password = tmp_path / "password"
    password.write_bytes(b"secret\n")
    password.chmod(0o600)
    server_context(server(own, key_password_file=str(password)))
    password.write_bytes(b"x" * 1025)  # a ValueError of Python, which nobody expected
    with pytest.raises(TlsConfigError, match=r"password file .* cannot be longer than 1024"):
        server_context(server(own, key_password_file=str(password)))
    password.write_bytes(b"wrong")
    with pytest.raises(TlsConfigError, match=r"the password in .* does not open"):
        server_context(server(own, key_password_file=str(password)))
    with pytest.raises(TlsConfigError, match="is encrypted, and no password file"):
        server_context(server(own))


# -- reload -----------------------------------------------------------------------------------


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Told:
    def __init__(self) -> None:
        self.events: list[str] = []

    def __call__(self, event: str, **fields: object) -> None:
        self.events.append(event)


def test_changed_files_are_loaded_at_the_next_check(authority: Authority, own: Files) -> None:
    time, told = Time(), Told()
    tls = server_tls(server(own, reload_check_s=10.0), time, told)
    first = tls.current()
    time.now += 10.0
    assert tls.current() is first, "nothing changed"
    authority.issue("bookie")
    time.now += 9.9
    assert tls.current() is first, "the files are not checked yet"
    time.now += 0.1
    second = tls.current()
    assert second is not first
    assert tls.current() is second
    assert (tls.reloads, tls.reloads_failed, told.events) == (1, 0, ["tls_reloaded"])


def test_a_reload_that_fails_keeps_the_context_and_tries_again(
    authority: Authority, own: Files
) -> None:
    time, told = Time(), Told()
    tls = server_tls(server(own, reload_check_s=10.0), time, told)
    first = tls.current()
    new = authority.issue("new")
    Path(own.certificate).write_bytes(Path(new.certificate).read_bytes())
    for _ in range(3):  # The key does not match; reported once, and counted each time.
        time.now += 10.0
        assert tls.current() is first
    assert (tls.reloads, tls.reloads_failed, told.events) == (0, 3, ["tls_reload_failed"])
    mode = os.stat(own.private_key).st_mode
    os.unlink(own.private_key)
    time.now += 10.0
    assert tls.current() is first
    assert told.events == ["tls_reload_failed"] * 2
    Path(own.private_key).write_bytes(Path(new.private_key).read_bytes())
    Path(own.private_key).chmod(mode)
    time.now += 10.0
    assert tls.current() is not first
    assert (tls.reloads, tls.reloads_failed) == (1, 4)


def test_a_replaced_link_is_a_change(tmp_path: Path, authority: Authority, own: Files) -> None:
    """Mounted secrets change by a new link target, with the same size and time."""
    ca = tmp_path / "linked.pem"
    ca.symlink_to(authority.ca)
    time = Time()
    tls = client_tls(TlsClientConfig(ca=str(ca), reload_check_s=10.0), time, Told())
    first = tls.current()
    other = tmp_path / "other.pem"
    other.write_bytes(Path(authority.ca).read_bytes())
    os.utime(other, ns=(0, Path(authority.ca).stat().st_mtime_ns))
    ca.unlink()
    ca.symlink_to(other)
    time.now += 10.0
    assert tls.current() is not first


def test_a_failure_to_load_the_first_context_is_raised(tmp_path: Path) -> None:
    with pytest.raises(TlsConfigError, match="cannot be read"):
        client_tls(TlsClientConfig(ca=str(tmp_path / "none")), Time(), Told())


# -- expiry -----------------------------------------------------------------------------------

DAY_MS = 86_400_000


def at(days: int) -> datetime.datetime:
    return datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(days=days)


def at_ms(days: int) -> int:
    return int(at(days).timestamp()) * 1000


def test_expiry_dates_of_own_and_trusted_certificates_are_reported(
    authority: Authority, own: Files
) -> None:
    authority.issue("bookie", ends=at(0))
    tls = server_tls(server(own, ca=authority.ca, client_certificates="required"), Time(), Told())
    presented, trusted = tls.certificates()
    assert (presented.path, presented.own, presented.ends_ms) == (
        own.certificate,
        True,
        (at_ms(0),),
    )
    assert (trusted.path, trusted.own, len(trusted.ends_ms)) == (authority.ca, False, 1)
    assert expiries([presented], 0) == [CertificateExpiry(own.certificate, True, at_ms(0))]


def test_a_renewed_file_is_seen_without_a_handshake(authority: Authority, own: Files) -> None:
    """Metrics are read although no client connects, because none can."""
    authority.issue("bookie", expired=True)
    time, events = Time(), list[tuple[str, dict[str, object]]]()
    tls = server_tls(
        server(own, reload_check_s=10.0), time, lambda event, **more: events.append((event, more))
    )
    authority.issue("bookie", ends=at(0))
    assert tls.certificates()[0].ends_ms != (at_ms(0),), "the files are not checked yet"
    time.now += 10.0
    assert tls.certificates()[0].ends_ms == (at_ms(0),)
    ((event, fields),) = events
    assert (event, fields["expires"]) == (
        "tls_reloaded", {own.certificate: "2030-01-01T00:00:00Z"},
    )  # fmt: skip


def test_a_reload_of_a_certificate_that_has_expired_is_a_warning(
    authority: Authority, own: Files
) -> None:
    """The event was once logged at the level of a success."""
    time, events = Time(), list[tuple[str, dict[str, object]]]()
    tls = server_tls(
        server(own, reload_check_s=10.0),
        time,
        lambda event, **more: events.append((event, more)),
        lambda: at_ms(1),
    )
    for ends in (at(2), at(0)):
        authority.issue("bookie", ends=ends)
        time.now += 10.0
        tls.current()
    (good, bad) = events
    assert [level_of(*one) for one in events] == ["info", "warning"]
    assert "expired" not in good[1]
    assert bad[1]["expired"] == [own.certificate]


def test_a_reload_names_the_time_at_which_the_authorities_must_be_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, authority: Authority
) -> None:
    """The event once named an expired authority that is still in the file with its successor."""
    ends = at_ms(0), at_ms(9)
    monkeypatch.setattr(
        "quire.net.tls._certificates", lambda own, ca: (CertificateFile(str(ca), False, ends),)
    )
    ca = tmp_path / "authorities.pem"
    ca.write_bytes(Path(authority.ca).read_bytes())
    time, events = Time(), list[tuple[str, dict[str, object]]]()
    tls = client_tls(
        TlsClientConfig(ca=str(ca), reload_check_s=10.0),
        time,
        lambda event, **more: events.append((event, more)),
        lambda: at_ms(1),
    )
    ca.write_bytes(2 * Path(authority.ca).read_bytes())
    time.now += 10.0
    tls.current()
    ((event, fields),) = events
    assert (event, fields["expires"]) == ("tls_reloaded", {str(ca): "2030-01-10T00:00:00Z"})
    assert "expired" not in fields


def test_the_first_certificate_of_a_chain_that_expires_counts() -> None:
    chain = CertificateFile("f", True, (at_ms(9), at_ms(1), at_ms(5)))
    assert chain.expires_ms(at_ms(0)) == at_ms(1)
    assert chain.expires_ms(at_ms(7)) == at_ms(1), "the chain is not valid any more"


def test_an_expired_authority_beside_a_valid_one_is_ignored() -> None:
    trusted = CertificateFile("f", False, (at_ms(1), at_ms(9)))
    assert trusted.expires_ms(at_ms(0)) == at_ms(1), "clients may still use the old one"
    assert trusted.expires_ms(at_ms(1)) == at_ms(9)
    assert trusted.expires_ms(at_ms(20)) == at_ms(9), "no valid certificate is left"


def test_a_certificate_file_may_contain_other_pem_blocks(own: Files) -> None:
    pem = Path(own.certificate).read_bytes()
    found = certificate_file("f", b"text\n" + Path(own.private_key).read_bytes() + pem, own=True)
    assert found == certificate_file("f", pem, own=True)
    broken = pem.replace(b"CERTIFICATE-----\nMII", b"CERTIFICATE-----\nMIX", 1)
    assert certificate_file("f", broken, own=True) is None
    both = certificate_file("f", broken + pem, own=True)
    assert both is not None
    assert both.ends_ms == found.ends_ms if found else None
    assert certificate_file("f", b"", own=True) is None


def test_the_expiry_metric_has_one_sample_per_file(authority: Authority, own: Files) -> None:
    files = [CertificateExpiry("/a", True, 1_500), CertificateExpiry("/b", False, 2_000)]
    text = exposition([expiry_metric("bookie", files)])
    name = "quire_bookie_tls_certificate_expires_seconds"
    assert f'{name}{{file="/a",use="own"}} 1.5\n' in text
    assert f'{name}{{file="/b",use="authorities"}} 2\n' in text


# -- roles ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "roles"),
    [
        ("0:writer", ("writer",)),
        ("0:writer,reader;1:east", ("writer", "reader")),
        ("1:east;0: writer , reader ", ("writer", "reader")),
        ("0:first;0:second", ("second",)),
        ("0:a:b", ("a:b",)),
        ("1:east", ()),
        ("writer", ()),
        ("00:writer", ()),
        (" 0:writer", ()),
        ("x0:writer", ()),
        ("", ()),
        (";;;", ()),
        ("0:", ("",)),
        ("0:,writer", ("", "writer")),
    ],
)
def test_roles_are_read_from_the_organizational_unit(unit: str, roles: tuple[str, ...]) -> None:
    assert roles_of(unit) == roles


def subject(*units: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    names = [("countryName", "NL"), *(("organizationalUnitName", u) for u in units)]
    return tuple((name,) for name in [*names, ("commonName", "0:admin")])


def test_the_first_unit_and_its_first_role_decide() -> None:
    assert organizational_unit(subject("0:a", "0:b")) == "0:a"
    assert organizational_unit(subject()) is None
    assert is_authorized(subject("0:a,b", "0:c"), {"a"})
    assert not is_authorized(subject("0:a,b", "0:c"), {"b", "c"})
    assert not is_authorized(subject("staff", "0:a"), {"a"})
    assert not is_authorized(subject(), {"admin"})
    assert not is_authorized((), {"admin"})
    assert not is_authorized(subject("0:"), {""})
    assert not is_authorized(subject("0:A"), {"a"})
