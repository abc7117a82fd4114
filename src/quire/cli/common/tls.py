"""TLS options: those of a bookie, and those of every command that connects to bookies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from quire.cli.common.options import Command, composed, file_option, flag, kept, wanted_placement

if TYPE_CHECKING:
    from quire._runtime.opening import Opening
    from quire.client import Client
    from quire.config import ClientConfig
    from quire.configuration.layers import Configuration, Layer

SYSTEM = "system"
"""The value of --tls-ca that means the authorities that the operating system trusts."""
_CLIENT = "quire.tls"
"""The key in the `meta` of a command's context for the TLS options of its client."""
_FILE = click.Path(dir_okay=False)


# -- of a bookie ------------------------------------------------------------------------------

server_tls_options: Callable[[Command], Command] = composed(
    file_option(
        "--tls-cert",
        "Offer TLS with this certificate (PEM, including its chain). It must be valid for the host "
        "of --advertise. The bookie reloads its TLS files when they change.",
    ),
    file_option(
        "--tls-key",
        "The private key of the certificate (PEM). [default: in the file of --tls-cert]",
    ),
    file_option(
        "--tls-key-password-file",
        "A file with the password of the private key, if the key is encrypted.",
    ),
    file_option("--tls-ca", "The authorities that sign the certificates of clients (PEM)."),
    click.option(
        "--tls-client-certs",
        type=click.Choice(("none", "optional", "required")),
        help="Whether clients must present a certificate. [default: required with --tls-ca, else "
        "none]",
    ),
    flag("--tls-only", "Refuse connections without TLS."),
    click.option(
        "--tls-authorized-role",
        "roles",
        multiple=True,
        metavar="ROLE",
        help="Serve only clients whose certificate has this role as its first (OU=0:ROLE). May be "
        "repeated. Implies --tls-only.",
    ),
)


def server_tls(
    configured: Configuration,
    tls_cert: str | None,
    tls_key: str | None,
    tls_key_password_file: str | None,
    tls_ca: str | None,
    tls_client_certs: Any,
    tls_only: bool,
    roles: tuple[str, ...],
) -> Layer:
    """Return the configuration layer of the TLS options of a bookie.

    Raises `click.UsageError` if the options contradict each other, or what is `configured` without
    them.
    """
    from quire.configuration.layers import options_layer

    if tls_cert is None and "bookie.tls" not in configured.tables:
        for given, name in [
            (tls_key, "--tls-key"),
            (tls_key_password_file, "--tls-key-password-file"),
            (tls_ca, "--tls-ca"),
            (tls_client_certs, "--tls-client-certs"),
            (tls_only, "--tls-only"),
            (roles, "--tls-authorized-role"),
        ]:
            if given:
                raise click.UsageError(f"{name} requires --tls-cert (the bookie's certificate)")
    authorities = tls_ca or configured.values["bookie.tls.ca"]
    default = configured.values["bookie.tls.client_certificates"] if tls_ca is None else "required"
    wanted = tls_client_certs or default
    if wanted != "none" and authorities is None:
        raise click.UsageError(
            f"--tls-client-certs {wanted} requires --tls-ca (the authorities that sign the "
            "clients' certificates)"
        )
    if roles and wanted == "none":
        lacking = []
        if authorities is None:
            lacking.append("--tls-ca (the authorities that sign them)")
        if authorities is not None or tls_client_certs is not None:
            lacking.append("--tls-client-certs required")
        raise click.UsageError(
            f"--tls-authorized-role requires client certificates: give {' and '.join(lacking)}"
        )
    return options_layer(
        {
            "bookie.tls.certificate": (tls_cert, "--tls-cert"),
            "bookie.tls.private_key": (tls_key, "--tls-key"),
            "bookie.tls.key_password_file": (tls_key_password_file, "--tls-key-password-file"),
            "bookie.tls.ca": (tls_ca, "--tls-ca"),
            "bookie.tls.client_certificates": (tls_client_certs, "--tls-client-certs"),
            "bookie.tls_required": (tls_only or None, "--tls-only"),
            "bookie.authorized_roles": (roles, "--tls-authorized-role"),
        }
    )


# -- of commands that talk to bookies ---------------------------------------------------------


_KEEP = kept(_CLIENT)

tls_options: Callable[[Command], Command] = composed(
    click.option(
        "--tls-ca",
        envvar="QUIRE_TLS_CA",
        metavar="FILE",
        **_KEEP,
        help="Connect to bookies with TLS, and trust certificates that these authorities signed "
        f"(a PEM file, or '{SYSTEM}' for the authorities that this machine trusts). "
        "[default: QUIRE_TLS_CA]",
    ),
    file_option(
        "--tls-cert",
        "The client certificate to present to bookies (PEM). [default: QUIRE_TLS_CERT]",
        envvar="QUIRE_TLS_CERT",
        **_KEEP,
    ),
    file_option(
        "--tls-key",
        "The private key of the client certificate (PEM). [default: QUIRE_TLS_KEY, else in the "
        "file of --tls-cert]",
        envvar="QUIRE_TLS_KEY",
        **_KEEP,
    ),
    file_option(
        "--tls-key-password-file",
        "A file with the password of the private key, if the key is encrypted. [default: "
        "QUIRE_TLS_KEY_PASSWORD_FILE]",
        envvar="QUIRE_TLS_KEY_PASSWORD_FILE",
        **_KEEP,
    ),
    flag(
        "--tls-any-host-name",
        "Do not check the host names in the certificates of bookies, for clusters whose "
        "certificates contain none.",
        envvar="QUIRE_TLS_ANY_HOST_NAME",
        **_KEEP,
    ),
)


@click.command()
@tls_options
def _variables() -> None:
    """Declare the TLS options of a client for a parse that reads their environment variables.

    It is the callback of a command that is never run.
    """


def _given(context: click.Context) -> dict[str, Any]:
    """Return the TLS options of the command's client.

    The --tls-* options of `quire bookie start` belong to the bookie's server. Its clients (for
    autorecovery and HTTP) use the environment variables.
    """
    given: dict[str, Any] | None = context.meta.get(_CLIENT)
    return _variables.make_context("", []).meta[_CLIENT] if given is None else given


def client_config(**limits: Any) -> ClientConfig:
    """Return the client configuration of the current command, with its TLS options applied.

    `limits` overrides fields of the configuration. Raises `click.UsageError` for an invalid option
    or configuration, and `OSError` if the configuration file cannot be read.
    """
    from quire.cli.common.configuration import configured

    if (placement := wanted_placement(click.get_current_context())) is not None:
        limits["placement"] = placement
    return replace(configured(client_tls_layer()).client(), **limits)


def client_tls_layer() -> Layer:
    """Return the configuration layer of the TLS options of the current command's client.

    Raises `click.UsageError` for invalid options.
    """
    from quire.cli.common.configuration import configured
    from quire.configuration.layers import GivenValue, options_layer

    context = click.get_current_context()
    given = _given(context)
    authorities = given.get("tls_ca")
    shown = given.get("tls_cert") or given.get("tls_key")
    if shown and not authorities and "client.tls" not in configured().tables:
        raise click.UsageError(
            "--tls-cert and --tls-key require --tls-ca (the authorities that sign the bookies' "
            "certificates)",
            context,
        )
    options = options_layer(
        {
            "client.tls.ca": ("" if authorities == SYSTEM else authorities or None, "--tls-ca"),
            "client.tls.certificate": (given.get("tls_cert"), "--tls-cert"),
            "client.tls.private_key": (given.get("tls_key"), "--tls-key"),
            "client.tls.key_password_file": (
                given.get("tls_key_password_file"),
                "--tls-key-password-file",
            ),
        }
    )
    if given.get("tls_any_host_name") and "client.tls" in configured(options).tables:
        options.given["client.tls.verify_host_name"] = GivenValue(False, "--tls-any-host-name")
    return options


def connect(uri: str, **limits: Any) -> Opening[Client]:
    """Call `quire.connect` with the client configuration of the current command.

    `limits` overrides fields of the configuration. Raises the errors of `client_config` at once.
    """
    import quire

    return quire.connect(uri, config=client_config(**limits))
