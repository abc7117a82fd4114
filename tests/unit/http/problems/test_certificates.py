"""The problems of certificates that expire soon or have expired."""

from __future__ import annotations

from typing import Any

from quire.http.views.problems.certificates import OwnCertificates
from quire.http.views.problems.cluster import problems
from quire.http.views.problems.problem import Problem
from quire.net.certificates import EXPIRES_SOON_MS, CertificateExpiry
from tests.support.http.problems import WELL, bookie

DAY_MS = 86_400_000
NOW_MS = 1_900_000_000_000


def found(*bookies: dict[str, Any], own: OwnCertificates | None = None) -> list[Problem]:
    return problems([bookie("z"), *bookies], WELL, now_ms=NOW_MS, certificates=own)


def dated(name: str, days: float, **more: Any) -> dict[str, Any]:
    return {**bookie(name), "certificate_expires_ms": NOW_MS + int(days * DAY_MS), **more}


def reported(days: float, *, own: bool, path: str = "/etc/a b.crt") -> dict[str, Any]:
    file = {"path": path, "own": own, "expires_ms": NOW_MS + int(days * DAY_MS)}
    return {"certificates": [file]}


def test_a_certificate_is_reported_14_days_before_it_expires() -> None:
    assert EXPIRES_SOON_MS == 14 * DAY_MS
    assert found(dated("a", 14)) == []
    (one,) = found(dated("a", 13.9))
    assert one.severity == "warn"


def test_a_certificate_that_expires_soon_names_its_renewal() -> None:
    (one,) = found(dated("a", 2))
    assert one.what == "The certificate of a expires in 2 d, at 2030-03-19T17:46:40Z"
    assert one.next == (
        "Renew it: replace the files of --tls-cert and --tls-key on its machine. The bookie loads "
        "new files by itself and need not be restarted. To see its date there: "
        "openssl x509 -enddate -noout -in FILE"
    )
    assert one.risk == (
        "After that, clients and other bookies cannot open new connections to it. Connections "
        "that are open continue, so it may seem to work"
    )
    assert one.bookies == ("a",)
    (one,) = found(dated("a", 2, report=reported(2, own=True)))
    assert "on its machine ('/etc/a b.crt' of a)" in one.next
    assert one.next.endswith("openssl x509 -enddate -noout -in '/etc/a b.crt'")


def test_a_bookie_without_an_http_server_names_the_file_in_its_registration() -> None:
    files = {"own": "/etc/a.crt", "authorities": "/etc/ca.crt"}
    (one,) = found(dated("a", 2, tls_files=files))
    assert "on its machine (/etc/a.crt of a)" in one.next
    assert one.next.endswith("openssl x509 -enddate -noout -in /etc/a.crt")


def test_several_certificates_are_one_problem_in_order_of_expiry() -> None:
    (one,) = found(dated("a", 9), dated("b", 2), dated("c", 30))
    assert one.what.startswith("The certificates of 2 bookies expire soon: b (in 2 d, at")
    assert one.bookies == ("b", "a")


def test_each_of_several_certificates_has_its_file_and_command() -> None:
    """The finding named the file and the command of the bookie that expires first only."""
    files = [{"own": f"/tls/{name}.crt", "authorities": ""} for name in "ab"]
    (one,) = found(dated("a", 9, tls_files=files[0]), dated("b", 2, tls_files=files[1]))
    assert "on its machine (/tls/b.crt of b, /tls/a.crt of a)" in one.next
    assert one.next.endswith(
        "On the machine of b: openssl x509 -enddate -noout -in /tls/b.crt. "
        "On the machine of a: openssl x509 -enddate -noout -in /tls/a.crt"
    )


def test_an_expired_certificate_is_reported_once() -> None:
    """A bookie that clients use in clear text, or whose last handshake was before the expiry."""
    bad, warn = found(dated("a", -1), dated("b", 2))
    assert (bad.severity, warn.severity) == ("bad", "warn")
    assert bad.what == "The certificate of a expired 24 h ago, at 2030-03-16T17:46:40Z"
    silence = {"kind": "expired", "why": "the certificate has expired", "remedy": "Renew it"}
    (one,) = found({**bookie("a", free=None), "silence": silence,
                    "report": reported(-1, own=True)})  # fmt: skip
    assert "does not answer" in one.what


def test_a_certificate_in_the_report_of_a_bookie_is_checked() -> None:
    (one,) = found({**bookie("a"), "report": reported(2, own=True)})
    assert one.what.startswith("The certificate of a expires in 2 d")
    partly = {"certificates": [{"path": None, "own": True, "expires_ms": NOW_MS}]}
    assert found({**bookie("a"), "report": partly}) == []
    gone = found({**bookie("a", "gone"), "report": reported(2, own=True)})
    assert not any("certificate" in one.what for one in gone), "it will load its files again"


def test_an_expiring_client_authority_is_reported() -> None:
    (one,) = found({**bookie("a"), "report": reported(2, own=False)})
    assert one.what.startswith("The authority of client certificates of a expires in 2 d")
    assert "the file of --tls-ca on its machine" in one.next
    assert "openssl storeutl -noout -text -certs '/etc/a b.crt' | grep" in one.next


def test_the_certificate_files_of_this_process_are_checked() -> None:
    def soon(own: bool, days: int = 2) -> CertificateExpiry:
        return CertificateExpiry("/f", own, NOW_MS + days * DAY_MS)

    own = OwnCertificates((soon(True),), (soon(True), soon(False, -2), soon(False, 20)))
    expired, server, client = found(own=own)
    assert expired.what.startswith(
        "The authority of the bookies' certificates (/f) expired 2 d ago"
    )
    assert expired.severity == "bad"
    assert server.what.startswith("The certificate of this HTTP server (/f) expires in 2 d")
    assert client.what.startswith("The client certificate of this process (/f) expires in 2 d")
    assert server.next.endswith(
        "New files are loaded without a restart. To see its date: "
        "openssl x509 -enddate -noout -in /f"
    )
    assert "openssl storeutl -noout -text -certs /f | grep" in expired.next


def test_an_expiry_before_the_calendar_hides_no_other_problem() -> None:
    """Any process that registers as a bookie may report such a date."""
    report = {"certificates": [{"path": "/a.crt", "own": True, "expires_ms": -(2**62)}]}
    told = [one.what for one in found({**bookie("a"), "report": report}, dated("b", 2))]
    assert any("of a expired" in one and "at Unix time -4.61169e+15 s" in one for one in told)
    assert any("of b expires in 2 d" in one for one in told)
