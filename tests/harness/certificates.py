"""An authority of the tests, and certificates of it."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Collection
from pathlib import Path
from typing import Literal, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = datetime.timedelta(days=1)


class Pair(NamedTuple):
    """A certificate and its key."""

    certificate: Path
    key: Path


Lack = Literal["basic constraints", "critical", "key usage", "subject key", "authority key"]
"""What a strict verification asks for and a certificate of the tests lacks; `critical`: its Basic
Constraints are not critical."""


class Authority:
    """Signs certificates; its own is `certificate`."""

    def __init__(self, folder: Path, name: str = "ca", *, lacks: Collection[Lack] = ()) -> None:
        """`lacks`: `authority key` is of the certificates that it issues, the rest of its own."""
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name.from_rfc4514_string(f"CN={name}")
        self.certificate = folder / f"{name}.pem"
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        own_key = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        extensions: dict[Lack, tuple[x509.ExtensionType, bool]] = {
            "basic constraints": (constraints, "critical" not in lacks),
            "key usage": (usage, True),
            "subject key": (own_key, False),
        }
        builder = self._builder(self._name, self._key, DAY)
        for each, (extension, critical) in extensions.items():
            if each not in lacks:
                builder = builder.add_extension(extension, critical)
        own = builder.sign(self._key, hashes.SHA256())
        self._names_itself = "authority key" not in lacks
        self.certificate.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        subject: str | None = None,
        others: tuple[str, ...] = ("ip:127.0.0.1",),
        lasts: datetime.timedelta = DAY,
    ) -> Pair:
        """Write `name.pem` and `name.key`. `others`: alternative names with `dns:`, `uri:` or
        `ip:`. `lasts`: how long it is valid."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(x509.Name.from_rfc4514_string(subject or f"CN={name}"), key, lasts)
        if others:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general(each) for each in others]), False
            )
        if self._names_itself:
            issuers_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            builder = builder.add_extension(issuers_key, False)
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.certificate.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        private = serialization.PrivateFormat.PKCS8
        pair.key.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
        )
        return pair

    def trusting(self, pair: Pair | None = None, *, strictly: bool = False) -> ssl.SSLContext:
        """The context of a client that trusts this authority, and shows a certificate.

        `strictly`: as Python verifies since 3.13, on every Python."""
        context = ssl.create_default_context(cafile=self.certificate)
        if strictly:
            context.verify_flags |= ssl.VERIFY_X509_STRICT
        if pair is not None:
            context.load_cert_chain(*pair)
        return context

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, lasts: datetime.timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + lasts)
        )


def _general(text: str) -> x509.GeneralName:
    kind, _, name = text.partition(":")
    if kind == "ip":
        return x509.IPAddress(ipaddress.ip_address(name))
    return x509.DNSName(name) if kind == "dns" else x509.UniformResourceIdentifier(name)
