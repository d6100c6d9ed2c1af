"""Certificates of a running node: new ones without a restart, those of clients as identities, and
the headers of answers over TLS."""

from __future__ import annotations

import asyncio
import datetime
import http.client
import json
import socket
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import structs
from structlog.testing import capture_logs

from chronos.adapters.checkpoints.node import fetch_checkpoint
from chronos.adapters.raft import voter
from chronos.adapters.raft.wire import Callers, Inspect, Signer, StateUpdate, Unanswered
from chronos.admin.cluster.peers import PeerClient
from chronos.admin.http import issuer
from chronos.admin.http.tokens import digest, parse_tokens
from chronos.client import AsyncClient, Client, Unreachable
from chronos.config import load
from chronos.core.certificates import REMEDY, reason
from chronos.core.cluster.timing import Timing
from chronos.core.reach import EVERYTHING
from chronos.errors import ConfigurationError, Retry
from chronos.node import tls
from chronos.node.tls import Tls
from tests.harness import command
from tests.harness.certificates import Authority, Pair
from tests.harness.inside import Inside
from tests.harness.ports import free_port
from tests.harness.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


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
    path.write_text(json.dumps({"tokens": entries}))
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


# --- Strict verification, which Python does since 3.13


LACKS = [
    ("critical", "admin.tls.client_ca: {ca} (CN=ca) has no critical Basic Constraints. "),
    ("key usage", "admin.tls.client_ca: {ca} (CN=ca) has no Key Usage. "),
    ("subject key", "admin.tls.client_ca: {ca} (CN=ca) has no Subject Key Identifier. "),
    ("authority key", "admin.tls.certificate: {node} (CN=node) has no Authority Key Identifier. "),
]


def refusals(logs: list[Any]) -> list[str]:
    event = "certificate refused by newer clients"
    return [line["why"] for line in logs if line["event"] == event]


@pytest.mark.parametrize(("lack", "text"), LACKS)
def test_what_a_certificate_lacks_is_named_at_the_start_and_by_every_client_that_refuses_it(
    tmp_path, lack, text
):
    """The node goes on, and serves a client that does not verify strictly. A client, a fetch of a
    checkpoint, a request to another node and one to a voter have the reason and the remedy."""
    authority = Authority(tmp_path, lacks=[lack])
    pair = authority.issue("node")
    settings = {
        **settings_of(pair),
        "admin__tls__client_ca": authority.certificate,
        "admin__tls__client_certificates": "optional",
    }
    strict = authority.trusting(strictly=True)
    with capture_logs() as logs, Inside(tmp_path, **settings) as service:
        lenient = authority.trusting()
        lenient.verify_flags &= ~ssl.VERIFY_X509_STRICT
        service.context = lenient
        assert service.ask("GET", "/livez").status == 200
        url = service.server.url
        with (
            Client(url, tls=strict, retries=0) as client,
            pytest.raises(Unreachable) as told,
        ):
            client.ask("/v1/shards")
        texts = [str(told.value)]
        texts += asyncio.run(errors_of_requests(service, strict))
        with pytest.raises(Retry) as failed:
            next(fetch_checkpoint(url, 0, node="other", token="x", tls=strict))
        texts.append(str(failed.value))
    assert refusals(logs) == [text.format(ca=authority.certificate, node=pair.certificate) + REMEDY]
    for each in texts:
        assert "authority" in each, texts
        assert "is refused: " in each, texts
        assert REMEDY in each, texts
    assert all(f"127.0.0.1:{service.port}" in each for each in texts[:1] + texts[3:]), texts


async def errors_of_requests(service: Inside, strict: ssl.SSLContext) -> list[str]:
    """The texts of three errors: of the asynchronous client, of a request to another node, and of
    one to a voter."""
    url = service.server.url
    async with AsyncClient(url, tls=strict, retries=0) as client:
        with pytest.raises(Unreachable) as told:
            await client.ask("/v1/shards")
    # On 3.13 and later it is so by itself.
    service.node.tls.client().verify_flags |= ssl.VERIFY_X509_STRICT
    other, peers = structs.replace(service.node.describe(), address=url), PeerClient(service.node)
    with pytest.raises(aiohttp.ClientError) as failed:
        await peers.ask_member(other, "GET", "/v1/shards", {}, reach=EVERYTHING)
    await peers.close()
    callers = Callers({"v1": url}, Signer("s" * 32, "test", {"v1": url}), lambda: strict)
    with pytest.raises(Unanswered) as unanswered:
        await callers.ask(Inspect(), 10.0)
    await callers.close()
    return [str(told.value), reason(failed.value), str(unanswered.value)]


def test_a_certificate_that_strict_clients_accept_is_not_complained_of(tmp_path, authority):
    """Nor is a self-signed one that stands alone: OpenSSL verifies it as it always did."""
    alone = self_signed(tmp_path)
    for pair, client_ca in ((authority.issue("node"), authority.certificate), (alone, alone[0])):
        settings = {**settings_of(pair), "admin__tls__client_ca": client_ca}
        context = ssl.create_default_context(cafile=client_ca)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_cert_chain(*pair)
        with capture_logs() as logs, Inside(tmp_path, **settings) as service:
            service.context = context
            assert service.ask("GET", "/livez").status == 200
        assert refusals(logs) == []


def self_signed(folder: Path) -> Pair:
    """A certificate as OpenSSL makes it by default: an authority, without a Key Usage."""
    pair = Pair(folder / "alone.pem", folder / "alone.key")
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]
    curve = ["-pkeyopt", "ec_paramgen_curve:prime256v1"]
    names = ["-subj", "/CN=alone", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(pair.key), "-out", str(pair.certificate)]
    subprocess.run([*new, *curve, *names, *files], check=True, capture_output=True, timeout=60)
    return pair


def test_an_authority_that_only_the_machine_trusts_is_examined_too(tmp_path, monkeypatch):
    """The one that has issued the certificate of the node, of those in SSL_CERT_FILE."""
    authority, other = (
        Authority(tmp_path, name, lacks=["key usage", "subject key"]) for name in ("ca", "other")
    )
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.certificate.read_bytes() + other.certificate.read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    pair = authority.issue("node")
    found = Tls(
        load(None, {}, [f"admin.tls.certificate={pair.certificate}", f"admin.tls.key={pair.key}"])
    )
    place = "an authority that this machine trusts (CN=ca)"
    assert found.refused == [
        f"{place} has no Key Usage and has no Subject Key Identifier. {REMEDY}"
    ]


def test_an_authority_that_only_openssl_reads_stops_no_node(tmp_path, authority, monkeypatch):
    """One of X.509 version 2, among the authorities of clients and among those of the machine."""
    pair, odd = authority.issue("node"), tmp_path / "odd.pem"
    encoded = ssl.PEM_cert_to_DER_cert(authority.certificate.read_text())
    version_3, version_2 = bytes.fromhex("a003020102"), bytes.fromhex("a003020101")
    assert version_3 in encoded[:20]
    odd.write_text(ssl.DER_cert_to_PEM_cert(encoded.replace(version_3, version_2, 1)))
    monkeypatch.setenv("SSL_CERT_FILE", str(odd))
    files = {"certificate": pair.certificate, "key": pair.key, "client_ca": odd}
    found = Tls(load(None, {}, [f"admin.tls.{name}={file}" for name, file in files.items()]))
    assert found.refused == []
    assert found.server() is not None


@pytest.mark.process
def test_new_files_are_examined_when_they_are_read(tmp_path, authority, monkeypatch):
    """Files that Python 3.13 refuses are in force all the same; the log and the doctor name
    them."""
    monkeypatch.setattr(tls, "CHECK_S", 0.0)
    pair = authority.issue("node")
    settings = [f"admin.tls.certificate={pair.certificate}", f"admin.tls.key={pair.key}"]
    found = Tls(load(None, {}, settings))
    before = found.server()
    assert found.refused == []
    new = Authority(tmp_path, "ca-2", lacks=["authority key"]).issue("new")
    with capture_logs() as logs:
        pair.key.write_bytes(new.key.read_bytes())
        pair.certificate.write_bytes(new.certificate.read_bytes())
        assert found.server() is not before
    named = f"admin.tls.certificate: {pair.certificate} (CN=new) has no Authority Key Identifier. "
    assert refusals(logs) == found.refused == [named + REMEDY]
    options = [option for each in settings for option in ("--set", each)]
    done = command.run("doctor", *options, "--set", f"node.data_dir={tmp_path / 'none'}")
    assert (done.code, f"note     certificates: {named}" in done.out) == (0, True), done.out


def test_the_authority_of_the_documentation_is_accepted_by_every_client(tmp_path):
    """The commands of the page make an authority and a certificate for servers and clients."""
    page = (ROOT / "docs/how-to/secure.md").read_text()
    section = page.split("### An authority that every client accepts\n")[1].split("\n## ")[0]
    commands = section.split("```sh\n")[1].split("```")[0]
    subprocess.run(
        ["bash", "-euc", commands], cwd=tmp_path, check=True, capture_output=True, timeout=60
    )
    ca, pair = tmp_path / "ca.pem", Pair(tmp_path / "node.pem", tmp_path / "node.key")
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(*pair)
    settings = {**settings_of(pair), "admin__tls__client_ca": ca}
    with capture_logs() as logs, Inside(tmp_path, **settings) as service:
        service.context = context
        assert service.ask("GET", "/livez").status == 200
    assert refusals(logs) == []


def test_keys_of_an_issuer_with_a_refused_authority_are_not_read_with_a_reason(tmp_path):
    """As for every other connection."""
    authority = Authority(tmp_path, lacks=["key usage"])
    with Inside(tmp_path, **settings_of(authority.issue("node"))) as service:
        url = f"{service.server.url}/openapi.json"

        async def fetch() -> None:
            async with aiohttp.ClientSession() as session:
                await session.get(url, ssl=authority.trusting(strictly=True))

        with pytest.raises(aiohttp.ClientError) as failed:
            asyncio.run(fetch())
    text = issuer._why(url, failed.value)
    assert text.startswith(f"{url} cannot be read: its certificate, or the authority of it, is ref")
    assert text.endswith(REMEDY)


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
        parse_tokens(f"tokens: [{{name: a, roles: [read], {entry}}}]".encode())
    assert text in str(refused.value)


def test_two_entries_have_two_names():
    """However they are written."""
    entries = (
        "{name: a, roles: [read], certificate: 'dns:A.b'}, {name: b, roles: [read], certificate: "
        "'dns:a.B'}"
    )
    with pytest.raises(ValueError, match=r"two tokens with the certificate dns:a\.b"):
        parse_tokens(f"tokens: [{entries}]".encode())


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
    done = command.run("list", "--server", url, *options, variables=variables)
    return done.code, done.err


@pytest.mark.process
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
    weak = Authority(tmp_path, "weak", lacks=["key usage"])
    with Inside(tmp_path / "weak", **settings_of(weak.issue("weak-node"))) as service:
        url = service.server.url
        done = run(url, "--ca", str(weak.certificate))
        if ssl.create_default_context().verify_flags & ssl.VERIFY_X509_STRICT:
            refused = f"the certificate of {url}, or its authority, is refused: "
            assert (done[0], refused in done[1], REMEDY in done[1]) == (3, True, True), done
        else:
            assert done == (0, "nothing is pending\n")
    with Inside(tmp_path / "plain") as service:
        assert (
            run(service.server.url.replace("http", "https"), *ca)[1]
            .strip()
            .endswith("or does it begin with http://?")
        )
