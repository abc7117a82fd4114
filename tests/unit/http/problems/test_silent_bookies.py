"""The problems of bookies that are registered and do not answer."""

from __future__ import annotations

from typing import Any

from quire.http.views.problems.certificates import OwnCertificates
from quire.http.views.problems.cluster import problems
from quire.http.views.problems.problem import Problem
from quire.net.certificates import CertificateExpiry
from tests.support.http.problems import WELL, bookie, said


def silent(name: str, kind: str, why: str = "", remedy: str = "", **more: Any) -> dict[str, Any]:
    told = {"kind": kind, "why": why, "remedy": remedy}
    return {**bookie(name, free=None), "silence": told, **more}


def found(*bookies: dict[str, Any]) -> list[Problem]:
    return problems([bookie("z"), *bookies], WELL)


def test_a_bookie_that_does_not_answer_is_a_problem() -> None:
    assert said([bookie("z"), bookie("a", free=None)]) == [
        ("bad", "a is registered but does not answer")
    ]


def test_a_bookie_that_was_not_asked_yet_is_no_problem() -> None:
    assert said([bookie("z"), {**bookie("a", free=None), "answers": None}]) == []


def test_a_stopped_process_should_be_restarted() -> None:
    (one,) = found(
        silent("10.0.0.1:4181", "refused", "nothing listens at its address", directories=["/d"])
    )
    assert one.what == (
        "10.0.0.1:4181 is registered but does not answer (nothing listens at its address)"
    )
    assert one.next == (
        "Its process does not run. Start it again, with the options that it had: "
        "quire bookie start --dir /d --port 4181"
    )
    assert one.doing.startswith("The registration ends with its session")
    assert one.bookies == ("10.0.0.1:4181",)


def test_an_expired_certificate_should_be_renewed_without_a_restart() -> None:
    (one,) = found(silent("a", "expired", "the certificate of bookie a has expired", "Renew it"))
    assert one.what == (
        "a is registered but does not answer (the certificate of bookie a has expired)"
    )
    assert one.next == (
        "Renew it. To see its date on that machine: openssl x509 -enddate -noout -in FILE"
    )
    assert "Connections that are open continue" in one.risk
    assert one.doing.startswith("Nothing until the next check of all ledgers"), (
        "the bookie counts as lost then"
    )


def test_the_certificate_file_to_renew_is_named() -> None:
    file = {"path": "/etc/my cert", "own": True, "expires_ms": 0}
    (one,) = found(silent("a", "expired", "x", "Renew it", report={"certificates": [file]}))
    command = "openssl x509 -enddate -noout -in '/etc/my cert'"
    wanted = f"Renew it ('/etc/my cert' of a). To see its date on that machine: {command}"
    assert one.next == wanted
    files = {"own": "/etc/my cert", "authorities": ""}
    (one,) = found(silent("a", "expired", "x", "Renew it", tls_files=files))
    assert one.next == wanted, "the registration names the file as well"


def test_an_expired_authority_should_be_renewed_first() -> None:
    own = OwnCertificates(client=(CertificateExpiry("/ca", False, 1_000),))
    expired = silent("a", "expired", "the certificate of bookie a has expired", "Renew it")
    first, second = problems([bookie("z"), expired], WELL, now_ms=2_000, certificates=own)
    assert "The authority of the bookies' certificates (/ca) expired" in first.what
    assert "Renew that first" in second.next


def test_a_hanging_bookie_should_be_stopped() -> None:
    (one,) = found(silent("a", "other", "it did not answer within 2 s"))
    assert "(it did not answer within 2 s)" in one.what
    assert one.next == (
        "Check its log and the network to it. If it hangs, stop it: then it counts as lost"
    )


def test_silent_bookies_with_the_same_reason_are_one_problem() -> None:
    first, second = found(
        silent("a", "expired", "a has expired", "Renew it"),
        silent("b", "other", "it did not answer"),
        silent("c", "expired", "c has expired", "Renew it"),
    )
    assert first.what == "a, c are registered but do not answer"
    assert first.items == ("a: a has expired", "c: c has expired")
    assert first.bookies == ("a", "c")
    assert second.bookies == ("b",)


def test_each_expired_certificate_has_its_file_and_command() -> None:
    """The finding had those of the first bookie only, so the other one was found a round later."""
    names = {"own": "/tls/a b.pem", "authorities": ""}, {"own": "/tls/c.pem", "authorities": ""}
    (one,) = found(
        silent("a", "expired", "a has expired", "Renew it", tls_files=names[0]),
        silent("c", "expired", "c has expired", "Renew it", tls_files=names[1]),
    )
    assert one.next == (
        "On each machine, renew it ('/tls/a b.pem' of a, /tls/c.pem of c). Each machine shows the "
        "date of its file. On the machine of a: openssl x509 -enddate -noout -in '/tls/a b.pem'. "
        "On the machine of c: openssl x509 -enddate -noout -in /tls/c.pem"
    )


def test_bookies_with_one_reason_and_one_command_share_them() -> None:
    files = {"own": "/tls/bookie.pem", "authorities": ""}
    (one,) = found(*(silent(name, "expired", "x", "Renew it", tls_files=files) for name in "abc"))
    assert (one.what, one.items) == ("a, b, c are registered but do not answer (each: x)", ())
    assert one.next.count("openssl") == 1
    assert "On the machine of a, b, c: openssl x509" in one.next


def test_at_most_ten_reasons_and_commands_are_written_out() -> None:
    ports = range(4001, 4014)
    (one,) = found(*(silent(f"h:{port}", "refused", f"why {port}") for port in ports))
    assert one.items == (*(f"h:{port}: why {port}" for port in ports[:10]), "and 3 more")
    assert one.next.startswith(
        "Their processes do not run. Start each of them again. On the machine of h:4001, with the "
        "options that it had: quire bookie start --dir DIR --port 4001. On the machine of h:4002, "
    )
    assert one.next.count("quire bookie start") == 10
    assert one.next.endswith("For h:4011, h:4012, h:4013, do the same")


def test_a_silent_bookies_problem_claims_no_repair_without_autorecovery() -> None:
    """It said that autorecovery would copy the ledgers, although it was switched off."""
    hangs, down = silent("a", "other"), silent("a", "refused")
    for state, why in (
        ({"enabled": False}, "autorecovery is switched off (quire autorecovery enable)"),
        ({"auditor": None}, "no autorecovery process is running (quire autorecovery start)"),
    ):
        one, *_ = problems([bookie("z"), hangs], {**WELL, **state})
        assert one.doing == f"Nothing: {why}"
        one, *_ = problems([bookie("z"), down], {**WELL, **state})
        assert one.doing == (
            f"The registration ends with its session, within seconds. Then nothing is copied: {why}"
        )
