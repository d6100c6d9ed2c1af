"""The tokens of an OIDC issuer (`admin.jwt`): JSON Web Tokens, checked with the issuer's keys.

The module says whether a token is genuine and returns its claims; the token file says which claims
permit what (`tokens`).

The keys (JWKS) are those of a file, read again when it changes, or of a URL, read again every
REFRESH_S, and earlier for a token with an unknown key or after a read that failed, but at most
every PAUSE_S. If the keys cannot be read, the keys that were read before stay in force."""

import asyncio
import hashlib
import json
import os
import ssl
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import jwt
import structlog
from msgspec import Struct

from chronos.admin.http.problems import ProblemError
from chronos.config.model import AdminJwtConfig
from chronos.core import certificates
from chronos.errors import ConfigurationError

log = structlog.get_logger("chronos.http")

ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA",),
}
"""Algorithms by the curve or the type of a key. `none` and shared secrets are left out: a service
that can check such a token can also make one."""

LEEWAY_S = 30
"""How far the clocks of the issuer and of this node may differ."""

REFRESH_S = 300.0
"""Time between two reads of a URL."""

PAUSE_S = 10.0
"""Least time between two reads of a URL, whatever tokens arrive."""

FETCH_S = 10.0
"""How long a read of a URL may take."""

JWKS_BYTES_MAX = 1024 * 1024
"""Largest set of keys."""

KNOWN_MAX = 1_000
"""Most valid tokens that are remembered: a signature costs some tenths of a millisecond, and a
client sends its token often."""

REQUIRED = ("exp", "iss", "aud")
"""Claims that every token must have."""


class Untrusted(Exception):
    """A token that is not valid; the text says why."""


class _Key(Struct, frozen=True, kw_only=True):
    id: str | None
    algorithms: tuple[str, ...]
    public: Any


class Issuer:
    """Checks the tokens of one issuer. For one event loop."""

    def __init__(self, config: AdminJwtConfig) -> None:
        """Raises ConfigurationError for a file that cannot be used. A URL is not read yet."""
        assert config.issuer is not None
        assert config.audience is not None
        assert config.jwks is not None
        self._issuer = config.issuer
        self._audience = config.audience
        self._place = config.jwks
        self._is_url = "://" in config.jwks
        self._keys: tuple[_Key, ...] = ()
        self._is_stale = False
        self._known: dict[bytes, dict[str, Any]] = {}
        """Claims of valid tokens by the hash of the token, oldest first."""
        self._wanted = asyncio.Event()
        self._is_reading = False
        self._asked_s = float("-inf")
        self._stamp: object = None
        if not self._is_url:
            try:
                self._stamp = self._state()
                self._keys = self._read_file()
            except (OSError, ValueError) as error:
                raise ConfigurationError([f"admin.jwt.jwks: {_why(self._place, error)}"]) from None

    @property
    def is_stale(self) -> bool:
        """True while the keys cannot be read: the keys that were read before are in force, or there
        are none yet."""
        self._refresh_file()
        return self._is_stale

    async def run(self) -> None:
        """Read the keys of a URL repeatedly, until the task is cancelled."""
        while self._is_url:
            self._wanted.clear()
            self._asked_s, self._is_reading = time.monotonic(), True
            try:
                keys = read_keys(await _fetch(self._place))
            except (aiohttp.ClientError, OSError, ValueError) as error:
                self._failed(error)
            else:
                if {key.id for key in keys} != {key.id for key in self._keys} or self._is_stale:
                    log.info("keys of the issuer read", keys=len(keys), jwks=self._place)
                self._use(keys)
            self._is_reading = False
            # Both waits are bounded: an unknown key ends the second one only.
            await asyncio.sleep(PAUSE_S)
            try:
                async with asyncio.timeout(0.0 if self._is_stale else REFRESH_S - PAUSE_S):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    def claims(self, token: str) -> dict[str, Any]:
        """The claims of a valid token. Untrusted for any other; ProblemError with status 503 while
        its key may still come."""
        self._refresh_file()
        name = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        if (known := self._known.get(name)) is not None and time.time() < int(known["exp"]):
            return known
        found = self._known[name] = self._checked(token)
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
        return found

    def _use(self, keys: tuple[_Key, ...]) -> None:
        self._keys, self._is_stale = keys, False
        # A token may be signed with a key that is gone.
        self._known.clear()

    def _checked(self, token: str) -> dict[str, Any]:
        try:
            header = jwt.get_unverified_header(token)
            for key in self._candidates(header.get("kid"), header.get("alg")):
                try:
                    found: dict[str, Any] = jwt.decode(
                        token,
                        key.public,
                        algorithms=list(key.algorithms),
                        issuer=self._issuer,
                        audience=self._audience,
                        leeway=LEEWAY_S,
                        options={"require": list(REQUIRED)},
                    )
                except jwt.InvalidSignatureError:
                    continue
                return found
        except (jwt.PyJWTError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
            # The library reads the header before the signature, and an untrusted client writes it.
            raise Untrusted(str(error)[:200] or type(error).__name__) from None
        raise Untrusted("no key of the issuer has signed it")

    def _candidates(self, key_id: object, algorithm: object) -> list[_Key]:
        """The keys that may have signed it; a token need not name its key."""
        found = [key for key in self._keys if key_id is None or key.id == key_id]
        if found or not self._is_url:
            return [key for key in found if algorithm in key.algorithms]
        may_come = self._is_reading or self._is_stale or not self._keys
        if may_come or time.monotonic() - self._asked_s > PAUSE_S:
            self._wanted.set()
            raise ProblemError(
                503,
                "unavailable",
                "the keys of the issuer of this token are being read",
                hint="try again",
            )
        return []

    def _refresh_file(self) -> None:
        if self._is_url:
            return
        try:
            stamp: object = self._state()
        except OSError as error:
            stamp = str(error)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._use(self._read_file())
            log.info("keys of the issuer read", keys=len(self._keys), jwks=self._place)
        except (OSError, ValueError) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._is_stale = True
        consequence = (
            "those of before stay in force" if self._keys else "no token of the issuer is valid"
        )
        log.error(
            "keys of the issuer not read", why=_why(self._place, error), consequence=consequence
        )

    def _state(self) -> tuple[object, ...]:
        found = os.stat(self._place)
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read_file(self) -> tuple[_Key, ...]:
        with open(self._place, "rb") as file:
            return read_keys(file.read(JWKS_BYTES_MAX))


def read_keys(data: bytes) -> tuple[_Key, ...]:
    """The public keys for signatures in a JWKS; ValueError if there are none. Other keys in it are
    left out."""
    try:
        listed = json.loads(data)["keys"]
        found = [
            key for each in listed if isinstance(each, Mapping) and (key := _key(each)) is not None
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("is not a JWKS") from None
    if not found:
        raise ValueError(
            "has no public key for signatures with one of the algorithms that are accepted"
        )
    return tuple(found)


def _key(given: Mapping[str, Any]) -> _Key | None:
    algorithms = ALGORITHMS.get(str(given.get("crv", given.get("kty"))), ())
    if (only := given.get("alg")) is not None:
        algorithms = tuple(each for each in algorithms if each == only)
    if not algorithms or given.get("use", "sig") != "sig":
        return None
    try:
        key = jwt.PyJWK.from_dict(dict(given), algorithm=algorithms[0])
    except jwt.PyJWTError:
        return None
    if hasattr(key.key, "private_bytes"):
        # A file may hold pairs; only what is public is used, and kept.
        return _Key(id=key.key_id, algorithms=algorithms, public=key.key.public_key())
    return _Key(id=key.key_id, algorithms=algorithms, public=key.key)


async def _fetch(url: str) -> bytes:
    # A context of each read: the authorities may have changed.
    context = ssl.create_default_context()
    timeout = aiohttp.ClientTimeout(total=FETCH_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(url, ssl=context, allow_redirects=False) as answer,
    ):
        if answer.status != 200:
            raise ValueError(f"answered with status {answer.status}")
        content = bytearray()
        async for part in answer.content.iter_any():
            content += part
            if len(content) > JWKS_BYTES_MAX:
                raise ValueError("is too large")
        return bytes(content)


def _why(place: str, error: Exception) -> str:
    cause = certificates.cause(error)
    if isinstance(cause, ValueError) and not isinstance(cause, ssl.SSLError):
        return f"{place} {cause}"
    return f"{place} cannot be read: {certificates.reason(error)}"
