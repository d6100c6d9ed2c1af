"""Certificates of a running node: new ones without a restart, those of clients as identities, and
the headers of answers over TLS."""

from __future__ import annotations

import asyncio
import datetime
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from chronos.adapters.raft import voter
from chronos.adapters.raft.wire import Callers, Inspect, Signer, StateUpdate, Unanswered
from chronos.admin.http.tokens import digest, parse_tokens
from chronos.client import AsyncClient, Unreachable
from chronos.config import load
from chronos.core.cluster.heartbeats import Timing
from chronos.errors import ConfigurationError
from chronos.node import tls
from chronos.node.tls import Tls
from tests.harness.certificates import Authority, Pair
from tests.harness.inside import Inside, wait_until
from tests.harness.ports import free_port


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def settings_of(pair: Pair) -> dict[str, Any]:
    return {"admin__tls__certificate": pair.certificate, "admin__tls__key": pair.key}


def serial(port: int, context: ssl.SSLContext) -> int:
    """The serial number of the certificate that is shown on a port."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
    ):
        return int(str(dict(wrapped.getpeercert() or {})["serialNumber"]), 16)


def tokens_file(folder: Path, *entries: dict[str, Any]) -> Path:
    path = folder / "tokens.yaml"
    path.write_text(json.dumps({"format": 2, "tokens": entries}))
    return path


# --- New files


def test_a_new_certificate_is_shown_without_a_restart(tmp_path, authority, monkeypatch):
    """Also one whose key is replaced later: until then the old pair is shown, the metric is 1, and
    the log has the reason."""
    monkeypatch.setattr(tls, "CHECK_S", 0.0)
    pair = authority.issue("node")
    context = authority.trusting()
    with Inside(tmp_path, **settings_of(pair)) as service:
        service.context = context
        before = serial(service.port, context)
        other = authority.issue("other")
        with capture_logs() as logs:
            pair.certificate.write_bytes(other.certificate.read_bytes())
            assert serial(service.port, context) == before
            assert b"\nchronos_certificates_stale 1.0\n" in service.ask("GET", "/metrics").body
            pair.key.write_bytes(other.key.read_bytes())
            assert serial(service.port, context) != before
            assert b"\nchronos_certificates_stale 0.0\n" in service.ask("GET", "/metrics").body
        assert [line["event"] for line in logs if "certificates" in line["event"]] == [
            "certificates not read",
            "certificates read",
        ]


def test_an_authority_that_was_replaced_is_trusted_no_more(tmp_path, authority, monkeypatch):
    """A client with a certificate of the new one is served, and one of the old one is refused."""
    monkeypatch.setattr(tls, "CHECK_S", 0.0)
    ca = tmp_path / "clients.pem"
    ca.write_bytes(authority.certificate.read_bytes())
    old, new = authority.trusting(authority.issue("old")), Authority(tmp_path, "ca-2")
    fresh = authority.trusting(new.issue("new"))
    with Inside(
        tmp_path, **settings_of(authority.issue("node")), admin__tls__client_ca=ca
    ) as service:
        service.context = old
        assert service.ask("GET", "/livez").status == 200
        ca.write_bytes(new.certificate.read_bytes())
        service.context = fresh
        assert service.ask("GET", "/livez").status == 200
        service.context = old
        with pytest.raises(OSError, match=r"(?i)alert|reset|eof|broken|closed"):
            service.ask("GET", "/livez")


def test_files_that_cannot_be_read_any_more_change_nothing(authority):
    """Neither for connections to the node nor for those from it."""
    pair = authority.issue("node")
    config = load(
        None, {}, [f"admin.tls.certificate={pair.certificate}", f"admin.tls.key={pair.key}"]
    )
    found = Tls(config)
    server, client = found.server(), found.client()
    pair.key.unlink()
    wait_until(lambda: found.is_stale)
    assert (found.server(), found.client()) == (server, client)


def test_a_voter_shows_a_new_certificate_and_does_not_name_its_server(
    tmp_path, authority, monkeypatch
):
    """Its socket stays open meanwhile, and so it is with the connections to voters, which show one
    too."""
    monkeypatch.setattr(tls, "CHECK_S", 0.0)
    monkeypatch.setattr(voter, "RENEW_S", 0.02)
    pair, context, port = (
        authority.issue("node"),
        authority.trusting(authority.issue("peer")),
        free_port(),
    )
    given = {"certificate": pair.certificate, "key": pair.key, "client_ca": authority.certificate}
    found = Tls(load(None, {}, [f"admin.tls.{name}={file}" for name, file in given.items()]))
    peers = {"v1": f"https://127.0.0.1:{port}"}

    def ask() -> tuple[int, str | None]:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
        connection.request("POST", "/")
        answer = connection.getresponse()
        connection.close()
        return answer.status, answer.getheader("Server")

    async def answered(callers: Callers) -> None:
        async with asyncio.timeout(30):
            while True:
                with suppress(Unanswered):
                    assert isinstance(await callers.ask(Inspect(), 10.0), StateUpdate)
                    return
                await asyncio.sleep(0.01)

    async def run() -> None:
        running = voter.Voter(
            "v1",
            peers,
            voter.Voting(host="127.0.0.1", port=port, path=tmp_path / "vote", tls=found.server),
            signer=Signer("s" * 32, "test", peers),
            timing=Timing(heartbeat_ms=100, timeout_ms=1_000),
            client_tls=found.client,
        )
        await running.start()
        callers = Callers(peers, Signer("s" * 32, "test", peers), found.client)
        try:
            before = await asyncio.to_thread(serial, port, context)
            assert await asyncio.to_thread(ask) == (404, None)
            await answered(callers)
            new = authority.issue("new")
            pair.key.write_bytes(new.key.read_bytes())
            pair.certificate.write_bytes(new.certificate.read_bytes())
            async with asyncio.timeout(30):
                while await asyncio.to_thread(serial, port, context) == before:
                    await asyncio.sleep(0.01)
            assert await asyncio.to_thread(ask) == (404, None)
            await answered(callers)
        finally:
            await callers.close()
            await running.stop()

    asyncio.run(run())


# --- Headers


def test_answers_over_tls_tell_browsers_to_keep_to_it(tmp_path, authority):
    """Without TLS they do not, and no answer names the server."""
    with Inside(tmp_path, **settings_of(authority.issue("node"))) as service:
        service.context = authority.trusting()
        for path in ("/livez", "/", "/nowhere"):
            assert (
                service.ask("GET", path).headers["strict-transport-security"] == "max-age=31536000"
            )


def test_no_answer_names_the_server(tmp_path):
    """Neither a good one, nor one to what is not HTTP."""
    with Inside(tmp_path) as service:
        for path in ("/livez", "/", "/nowhere"):
            headers = service.ask("GET", path).headers
            assert not {"server", "strict-transport-security"} & set(headers)
        with socket.create_connection(("127.0.0.1", service.port), timeout=10) as raw:
            raw.sendall(b"nonsense\r\n\r\n")
            answer = http.client.HTTPResponse(raw)
            answer.begin()
            assert (answer.status, answer.getheader("Server")) == (400, None)


# --- Clients by their certificates


def test_a_certificate_is_the_identity_of_its_client(tmp_path, authority):
    """By its subject or an alternative name; the log names the entry, and a certificate without one
    is that of a stranger."""
    path = tokens_file(
        tmp_path,
        {"name": "by-subject", "certificate": "CN=shop,O=Example", "roles": ["read"]},
        {
            "name": "by-dns",
            "certificate": "dns:Shop.Internal",
            "roles": ["read", "write"],
            "targets": ["shop.*"],
            "ids": ["shop-*"],
        },
        {
            "name": "by-uri",
            "certificate": "uri:spiffe://example.org/shop",
            "roles": ["read", "write"],
        },
        {"name": "by-token", "sha256": digest("token"), "roles": ["read"]},
    )
    settings = {
        **settings_of(authority.issue("node")),
        "admin__tls__client_ca": authority.certificate,
    }
    pairs = {
        "by-subject": authority.issue("a", subject="CN=shop,O=Example", others=()),
        "by-dns": authority.issue("b", others=("dns:shop.internal",)),
        "by-uri": authority.issue("c", others=("dns:other", "uri:spiffe://example.org/shop")),
        "stranger": authority.issue(
            "d", subject="CN=shop", others=("uri:spiffe://example.org/shop/more",)
        ),
    }
    body = {"target": {"topic": "orders"}, "value": "v", "delay": "1h"}
    with Inside(tmp_path, **settings, admin__tokens=path) as service, capture_logs() as logs:
        found = {}
        for name, pair in pairs.items():
            service.context = authority.trusting(pair)
            statuses = (
                service.ask("GET", "/v1/shards").status,
                service.ask("POST", "/v1/messages", body).status,
            )
            found[name] = statuses
        assert found == {
            "by-subject": (200, 403),
            "by-dns": (200, 403),
            "by-uri": (200, 202),
            "stranger": (401, 401),
        }
        # A token counts before the certificate, also one that is not valid.
        assert service.ask("GET", "/v1/shards", token="token").status == 200
        service.context = authority.trusting(pairs["by-uri"])
        assert service.ask("POST", "/v1/messages", body, token="token").status == 403
        assert service.ask("GET", "/v1/shards", token="wrong").status == 401
    assert {line["token"] for line in logs if line["event"] == "request"} == {"by-uri"}


def test_a_certificate_may_be_optional(tmp_path, authority):
    """Then a client without one needs a token, and health checks need nothing; one of another
    authority is refused all the same."""
    path = tokens_file(
        tmp_path,
        {"name": "shop", "certificate": "CN=shop", "roles": ["read"]},
        {"name": "support", "sha256": digest("token"), "roles": ["read"]},
    )
    stranger = Authority(tmp_path, "strangers").issue("stranger", subject="CN=shop")
    tls_settings = {
        **settings_of(authority.issue("node")),
        "admin__tls__client_ca": authority.certificate,
    }
    with Inside(
        tmp_path, **tls_settings, admin__tls__client_certificates="optional", admin__tokens=path
    ) as service:
        service.context = authority.trusting()
        assert service.ask("GET", "/livez").status == 200
        assert service.ask("GET", "/v1/shards").status == 401
        assert service.ask("GET", "/v1/shards", token="token").status == 200
        service.context = authority.trusting(authority.issue("shop"))
        assert service.ask("GET", "/v1/shards").status == 200
        service.context = authority.trusting(stranger)
        with pytest.raises(OSError, match=r"(?i)alert|reset|eof|broken|closed"):
            service.ask("GET", "/livez")


def test_a_certificate_that_expires_on_an_open_connection_is_worth_nothing_then(
    tmp_path, authority
):
    """The handshake was before; each request looks at the time."""
    path = tokens_file(tmp_path, {"name": "shop", "certificate": "CN=shop", "roles": ["read"]})
    settings = {
        **settings_of(authority.issue("node")),
        "admin__tls__client_ca": authority.certificate,
    }
    with Inside(tmp_path, **settings, admin__tokens=path) as service:
        context = authority.trusting(authority.issue("shop", lasts=datetime.timedelta(seconds=3)))
        connection = http.client.HTTPSConnection(
            "127.0.0.1", service.port, timeout=30, context=context
        )

        def status() -> int:
            connection.request("GET", "/v1/shards")
            answer = connection.getresponse()
            answer.read()
            return answer.status

        assert status() == 200
        wait_until(lambda: status() == 401)
        connection.close()


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("certificate: shop", "gives the token a the certificate 'shop': write its subject"),
        ("certificate: 'dns:'", "write its subject"),
        (
            f"certificate: CN=a, sha256: '{1:064}'",
            "must give the token a one of sha256, certificate and claims",
        ),
        ("targets: ['*']", "must give the token a one of sha256, certificate and claims"),
    ],
)
def test_an_entry_names_its_client_in_one_way(entry, text):
    """And in a way that can be compared."""
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        parse_tokens(f"format: 2\ntokens: [{{name: a, roles: [read], {entry}}}]".encode())
    assert text in str(refused.value)


def test_two_entries_have_two_names():
    """However they are written."""
    entries = (
        "{name: a, roles: [read], certificate: 'dns:A.b'}, {name: b, roles: [read], certificate: "
        "'dns:a.B'}"
    )
    with pytest.raises(ValueError, match=r"two tokens with the certificate dns:a\.b"):
        parse_tokens(f"format: 2\ntokens: [{entries}]".encode())


def test_entries_with_certificates_need_an_authority(tmp_path, authority):
    """Otherwise no client would be asked for one: the node does not start."""
    path = tokens_file(tmp_path, {"name": "shop", "certificate": "CN=shop", "roles": ["read"]})
    with (
        pytest.raises(
            ConfigurationError,
            match=r"entries with `certificate`, and admin.tls.client_ca is not set",
        ),
        Inside(tmp_path, **settings_of(authority.issue("node")), admin__tokens=path),
    ):
        pass


# --- The clients


def run(url: str, *options: str, **variables: str) -> tuple[int, str]:
    """Exit code and stderr of `chronos list`."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CHRONOS_")}
    done = subprocess.run(
        [sys.executable, "-m", "chronos", "list", "--server", url, *options],
        env={**environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stderr


@pytest.mark.slow
def test_the_command_line_shows_a_certificate_and_names_what_is_wrong_with_tls(tmp_path, authority):
    """By options or variables; a certificate that is not trusted, for another name, missing, or for
    no TLS at all is named as such."""
    path = tokens_file(tmp_path, {"name": "shop", "certificate": "CN=shop", "roles": ["read"]})
    settings = {
        **settings_of(authority.issue("node")),
        "admin__tls__client_ca": authority.certificate,
    }
    shop = authority.issue("shop")
    both = tmp_path / "both.pem"
    both.write_bytes(shop.certificate.read_bytes() + shop.key.read_bytes())
    ca = ("--ca", str(authority.certificate))
    with Inside(tmp_path, **settings, admin__tokens=path) as service:
        url, plain = service.server.url, service.server.url.replace("https", "http")
        assert run(url, *ca, "--cert", str(shop.certificate), "--cert-key", str(shop.key)) == (
            0,
            "nothing is pending\n",
        )
        assert run(url, *ca, "--cert", str(both)) == (0, "nothing is pending\n")
        variables = {
            "CHRONOS_CA": ca[1],
            "CHRONOS_CERT": str(shop.certificate),
            "CHRONOS_CERT_KEY": str(shop.key),
        }
        assert run(url, **variables) == (0, "nothing is pending\n")

        async def ask() -> Any:
            async with AsyncClient(url) as client:
                return await client.ask("/v1/shards")

        async def ask_plain() -> Any:
            async with AsyncClient(plain, retries=0) as client:
                return await client.ask("/v1/shards")

        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            assert asyncio.run(ask())["shards"]
        with pytest.raises(Unreachable, match=f"{plain} speaks TLS: write https://"):
            asyncio.run(ask_plain())
        failures = [
            (
                3,
                (
                    f"the certificate of {url} is not trusted: self-signed certificate in "
                    "certificate chain"
                ),
                run(url, "--cert", str(both)),
            ),
            (
                3,
                "need a certificate of an authority that it trusts; name one with --cert",
                run(url, *ca),
            ),
            (3, f"{plain} speaks TLS: write https://", run(plain)),
            (
                3,
                "is for another name: Hostname mismatch",
                run(url.replace("127.0.0.1", "localhost"), *ca, "--cert", str(both)),
            ),
            (
                2,
                "nowhere.pem cannot be used as a certificate and its key: No such file",
                run(url, "--cert", "nowhere.pem"),
            ),
            (
                2,
                "nowhere.pem cannot be used as certificates of authorities: No such file",
                run(url, "--ca", "nowhere.pem"),
            ),
        ]
        for code, text, (found, told) in failures:
            assert (found, text in told) == (code, True), (text, told)
    with Inside(tmp_path / "plain") as service:
        assert (
            run(service.server.url.replace("http", "https"), *ca)[1]
            .strip()
            .endswith("or does it begin with http://?")
        )
