"""Tokens of an OIDC issuer: what is valid, whose keys count, and what the claims permit. The keys
are those of the tests."""

from __future__ import annotations

import base64
import http.server
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from structlog.testing import capture_logs

from chronos.admin.http import issuer as issuer_module
from chronos.admin.http.issuer import read_keys
from chronos.admin.http.tokens import digest, parse_tokens
from chronos.config import load
from chronos.errors import ConfigurationError
from tests.harness.inside import Inside
from tests.harness.serving import serving
from tests.harness.waiting import wait_until

ISSUER = "https://login.example.org/realms/main"
AUDIENCE = "chronos"


class Key:
    """A key of the issuer."""

    def __init__(self, name: str, algorithm: str = "ES256") -> None:
        self.name = name
        self.algorithm = algorithm
        self.private: Any
        if algorithm[:2] in ("RS", "PS"):
            self.private = rsa.generate_private_key(65_537, 2_048)
        elif algorithm == "EdDSA":
            self.private = ed25519.Ed25519PrivateKey.generate()
        else:
            self.private = ec.generate_private_key(ec.SECP256R1())

    def public(self, **more: Any) -> dict[str, Any]:
        """Its public part, as the issuer shows it."""
        kind: Any = {"R": RSAAlgorithm, "P": RSAAlgorithm, "E": ECAlgorithm}[self.algorithm[0]]
        kind = OKPAlgorithm if self.algorithm == "EdDSA" else kind
        found = json.loads(kind.to_jwk(self.private.public_key()))
        return {**found, "kid": self.name, "alg": self.algorithm, "use": "sig", **more}

    def token(self, *, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token; a claim that is None is left out."""
        now_s = int(time.time())
        whole = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "alice",
            "iat": now_s,
            "exp": now_s + 300,
            **claims,
        }
        whole = {name: value for name, value in whole.items() if value is not None}
        headers = {"kid": self.name, **(header or {})}
        return jwt.encode(
            whole,
            self.private,
            self.algorithm,
            {each: headers[each] for each in headers if headers[each]},
        )


class Endpoint:
    """Serves a JWKS over HTTP."""

    def __init__(self) -> None:
        endpoint = self
        self.keys: list[Key] = []
        self.status = 200
        self.requests = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.requests += 1
                body = json.dumps({"keys": [key.public() for key in endpoint.keys]}).encode()
                self.send_response(endpoint.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/jwks"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    found = Endpoint()
    with serving(found.server):
        yield found


def jwks(folder: Path, *keys: dict[str, Any]) -> Path:
    path = folder / "jwks.json"
    path.write_text(json.dumps({"keys": keys}))
    return path


def tokens_file(folder: Path) -> Path:
    entries = [
        {
            "name": "admins",
            "claims": {"realm_access": {"roles": "chronos-admin"}},
            "roles": ["read", "write", "operate"],
        },
        {
            "name": "shop",
            "claims": {"groups": "shop", "verified": True},
            "roles": ["read", "write"],
            "targets": ["shop.*"],
            "ids": ["shop-*"],
        },
        {"name": "support", "claims": {"groups": "support"}, "roles": ["read"]},
        {"name": "opaque", "sha256": digest("opaque"), "roles": ["read"]},
    ]
    path = folder / "tokens.yaml"
    path.write_text(json.dumps({"tokens": entries}))
    return path


def settings_of(folder: Path, keys: object) -> dict[str, Any]:
    return {
        "admin__tokens": tokens_file(folder),
        "admin__jwt__issuer": ISSUER,
        "admin__jwt__audience": AUDIENCE,
        "admin__jwt__jwks": keys,
    }


KEYS = {
    algorithm: Key(f"key-{algorithm}", algorithm)
    for algorithm in ("RS256", "PS512", "ES256", "EdDSA")
}
STRANGER = Key("key-ES256")
"""Another key with the name of one of the issuer."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    folder = tmp_path_factory.mktemp("issuer")
    with Inside(
        folder, **settings_of(folder, jwks(folder, *(key.public() for key in KEYS.values())))
    ) as running:
        yield running


def status(service: Inside, token: str) -> int:
    return service.ask("GET", "/v1/shards", token=token).status


# --- What is valid


@pytest.mark.parametrize("algorithm", sorted(KEYS))
def test_a_token_of_the_issuer_is_valid(service, algorithm):
    """With every kind of key, for one audience or several."""
    key = KEYS[algorithm]
    assert status(service, key.token(groups=["other", "support"])) == 200
    assert status(service, key.token(groups="support", aud=["other", AUDIENCE])) == 200
    assert status(service, key.token(header={"kid": None}, groups="support")) == 200


def unsigned() -> str:
    return jwt.encode(
        {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60, "groups": "support"}, "", "none"
    )


def signed_with_the_public_key() -> str:
    """As a shared secret: the old confusion of RSA with HMAC."""
    public = KEYS["RS256"].private.public_key()
    pem = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )

    def part(content: dict[str, Any]) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=")

    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60, "groups": "support"}
    body = part({"alg": "HS256", "kid": "key-RS256", "typ": "JWT"}) + b"." + part(claims)
    return (
        body
        + b"."
        + base64.urlsafe_b64encode(jwt.get_algorithm_by_name("HS256").sign(body, pem)).rstrip(b"=")
    ).decode()


def nested(depth: int = 3_000) -> str:
    """A header that no parser of limited depth reads."""
    return base64.urlsafe_b64encode(b"[" * depth).decode().rstrip("=") + ".e30.e30"


INVALID: dict[str, Callable[[], str]] = {
    "expired": lambda: KEYS["ES256"].token(exp=int(time.time()) - 60, groups="support"),
    "not yet": lambda: KEYS["ES256"].token(nbf=int(time.time()) + 600, groups="support"),
    "no end": lambda: KEYS["ES256"].token(exp=None, groups="support"),
    "issuer": lambda: KEYS["ES256"].token(iss="https://other.example.org", groups="support"),
    "no issuer": lambda: KEYS["ES256"].token(iss=None, groups="support"),
    "audience": lambda: KEYS["ES256"].token(aud="other", groups="support"),
    "no audience": lambda: KEYS["ES256"].token(aud=None, groups="support"),
    "stranger": lambda: STRANGER.token(groups="support"),
    "unknown key": lambda: STRANGER.token(header={"kid": "unknown"}, groups="support"),
    "key of another kind": lambda: KEYS["RS256"].token(
        header={"kid": "key-ES256"}, groups="support"
    ),
    "none": unsigned,
    "HMAC": signed_with_the_public_key,
    "nested": nested,
    "numbers": lambda: (
        base64.urlsafe_b64encode(b'{"alg": ' + b"1" * 5_000 + b"}").decode() + ".e30.e30"
    ),
    "dots": lambda: "..",
    "no base64": lambda: "a.b.c",
}


@pytest.mark.parametrize("name", sorted(INVALID))
def test_any_other_token_is_that_of_a_stranger(service, name):
    """401, and no error in the log."""
    with capture_logs() as logs:
        assert status(service, INVALID[name]()) == 401
    assert not [line for line in logs if line["log_level"] == "error"]


@pytest.mark.slow
def test_a_token_that_was_valid_is_not_when_it_has_expired(service, monkeypatch):
    """Though it was remembered; and what is remembered is bounded."""
    monkeypatch.setattr(issuer_module, "LEEWAY_S", 0)
    monkeypatch.setattr(issuer_module, "KNOWN_MAX", 3)
    token = KEYS["ES256"].token(exp=int(time.time()) + 10, groups="support")
    assert [status(service, token), status(service, token)] == [200, 200]
    wait_until(lambda: status(service, token) == 401)
    for subject in "abcde":
        assert status(service, KEYS["ES256"].token(sub=subject, groups="support")) == 200


def test_an_answer_says_why_a_token_is_not_valid(service):
    """A program whose token has expired can be told from one with a wrong audience."""
    answer = service.ask("GET", "/v1/shards", token=INVALID["expired"]())
    assert (answer.problem, answer.json()["detail"]) == (
        "no-token",
        "the token is not valid: Signature has expired",
    )


# --- What it permits


def test_the_claims_choose_the_entry(service):
    """The first one whose claims the token has: text or a part of a list, in mappings by their
    keys; the log names its subject."""
    key = KEYS["ES256"]
    body = {"target": {"topic": "shop.orders"}, "value": "v", "delay": "1h", "id": "shop-1"}
    tokens = {
        "admins": key.token(
            sub="root@example.org", realm_access={"roles": ["chronos-admin"]}, groups=["support"]
        ),
        "shop": key.token(groups=["shop", "support"], verified=True),
        "not verified": key.token(groups=["shop"], verified=1),
        "support": key.token(groups=["support", "shop"], sub="bob\n/x"),
        "nothing": key.token(groups=["shops"]),
        "a list in a mapping": key.token(realm_access=["roles", "chronos-admin"]),
    }
    found = {}
    with capture_logs() as logs:
        for name, token in tokens.items():
            scheduled = service.ask("POST", "/v1/messages", body, token=token).status
            foreign = service.ask(
                "POST", "/v1/messages", {**body, "target": {"topic": "theirs"}}, token=token
            ).status
            found[name] = status(service, token), scheduled, foreign
    assert found == {
        "admins": (200, 202, 202),
        "shop": (200, 202, 403),
        "not verified": (403, 403, 403),
        "support": (200, 403, 403),
        "nothing": (403, 403, 403),
        "a list in a mapping": (403, 403, 403),
    }
    names = {line["token"] for line in logs if line["event"] in ("request", "request refused")}
    assert {"admins:root@example.org", "shop:alice", "support:bob%0A%2Fx"} <= names
    assert status(service, "opaque") == 200


# --- The keys


def test_keys_of_a_file_are_read_again_when_it_changes(tmp_path):
    """A file that cannot be used leaves those of before in force, and the metric is 1."""
    old, new = Key("old"), Key("new")
    path = jwks(tmp_path, old.public())
    with Inside(tmp_path, **settings_of(tmp_path, path)) as service:
        assert status(service, old.token(groups="support")) == 200
        jwks(tmp_path, new.public())
        assert status(service, new.token(groups="support")) == 200
        assert status(service, old.token(groups="support")) == 401
        path.write_text("nonsense")
        assert status(service, new.token(groups="support")) == 200
        assert b"\nchronos_jwks_stale 1.0\n" in service.ask("GET", "/metrics", token="opaque").body


def test_keys_of_a_url_are_read_again_for_an_unknown_one(tmp_path, endpoint, monkeypatch):
    """At most once in a while, however many tokens with unknown keys arrive; meanwhile the answer
    is 503."""
    monkeypatch.setattr(issuer_module, "PAUSE_S", 0.2)
    old, new = Key("old"), Key("new")
    endpoint.keys = [old]
    with Inside(tmp_path, **settings_of(tmp_path, endpoint.url)) as service:
        wait_until(lambda: status(service, old.token(groups="support")) == 200)
        endpoint.keys = [new]
        statuses = []

        def is_known() -> bool:
            statuses.append(status(service, new.token(groups="support")))
            return statuses[-1] == 200

        wait_until(is_known)
        assert 503 in statuses
        assert status(service, old.token(groups="support")) in (401, 503)
        monkeypatch.setattr(issuer_module, "PAUSE_S", 60.0)
        before = endpoint.requests
        assert {
            status(service, STRANGER.token(header={"kid": f"guess-{number}"}))
            for number in range(50)
        } <= {
            401,
            503,
        }
        assert endpoint.requests - before <= 1


def test_a_node_starts_and_keeps_its_keys_without_the_issuer(tmp_path, endpoint, monkeypatch):
    """Tokens of the file are valid meanwhile, and those of the issuer once its keys were read."""
    monkeypatch.setattr(issuer_module, "PAUSE_S", 0.05)
    key = Key("key")
    endpoint.keys, endpoint.status = [key], 500
    with Inside(tmp_path, **settings_of(tmp_path, endpoint.url)) as service:
        wait_until(lambda: endpoint.requests > 0)
        assert status(service, "opaque") == 200
        assert status(service, key.token(groups="support")) == 503
        wait_until(
            lambda: (
                b"\nchronos_jwks_stale 1.0\n" in service.ask("GET", "/metrics", token="opaque").body
            )
        )
        endpoint.status = 200
        wait_until(lambda: status(service, key.token(groups="support")) == 200)
        assert b"\nchronos_jwks_stale 0.0\n" in service.ask("GET", "/metrics", token="opaque").body
        monkeypatch.setattr(issuer_module, "REFRESH_S", 0.1)
        endpoint.status = 500
        wait_until(
            lambda: (
                b"\nchronos_jwks_stale 1.0\n" in service.ask("GET", "/metrics", token="opaque").body
            )
        )
        assert status(service, key.token(groups="support")) == 200


def test_only_public_keys_for_signatures_are_read():
    """Shared secrets, keys for encryption, unknown algorithms and what is no key are left out, and
    private parts are not kept."""
    key = Key("good")
    secret = {"kty": "oct", "kid": "secret", "k": base64.urlsafe_b64encode(b"x" * 32).decode()}
    private = {**json.loads(ECAlgorithm.to_jwk(key.private)), "kid": "pair"}
    found = read_keys(
        json.dumps(
            {
                "keys": [
                    secret,
                    {**secret, "alg": "HS256"},
                    key.public(use="enc"),
                    key.public(alg="RSA-OAEP"),
                    {"kty": "RSA"},
                    "text",
                    7,
                    key.public(),
                    private,
                    {**key.public(), "alg": None, "kid": "any"},
                ]
            }
        ).encode()
    )
    assert [each.id for each in found] == ["good", "pair", "any"]
    assert not any(hasattr(each.public, "private_numbers") for each in found)
    for data in (
        b"",
        b"[]",
        b'{"keys": 1}',
        b'{"keys": []}',
        json.dumps({"keys": [secret]}).encode(),
        b"[" * 100_000,
    ):
        with pytest.raises(ValueError, match=r"is not a JWKS|has no public key"):
            read_keys(data)


# --- The settings


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            ["admin.jwt.issuer=i"],
            ("--set: admin.jwt.audience: is missing, and admin.jwt.issuer is given"),
        ),
        (
            ["admin.jwt.issuer=i", "admin.jwt.audience=a", "admin.jwt.jwks=f"],
            ("--set: admin.jwt.issuer: is given without admin.tokens"),
        ),
        (
            ["admin.jwt.jwks=http://keys.example.org/"],
            ("--set: admin.jwt.jwks: must begin with https://"),
        ),
    ],
)
def test_the_settings_of_an_issuer_belong_together(settings, text):
    """And its keys cannot be changed on the way."""
    with pytest.raises(ConfigurationError) as refused:
        load(None, {}, settings)
    assert [problem for problem in refused.value.problems if problem.startswith(text)]


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        ("{}", "length >= 1"),
        ("{a: [b]}", "claims that are no text"),
        ("{a: 1.5}", ("claims that are no text")),
        ("{a: {}}", "claims that"),
    ],
)
def test_claims_of_an_entry_are_plain(claims, text):
    """An entry without a claim would be that of every token."""
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        parse_tokens(f"tokens: [{{name: a, roles: [read], claims: {claims}}}]".encode())
    assert text in str(refused.value)


def test_files_that_do_not_go_together_are_refused(tmp_path):
    """Claims without an issuer, and a file without keys."""
    with (
        pytest.raises(ConfigurationError, match=r"entries with `claims`, and admin.jwt is not set"),
        Inside(tmp_path / "a", admin__tokens=tokens_file(tmp_path)),
    ):
        pass
    with (
        pytest.raises(ConfigurationError, match=r"admin.jwt.jwks: .*jwks.json has no public key"),
        Inside(tmp_path / "b", **settings_of(tmp_path, jwks(tmp_path))),
    ):
        pass
