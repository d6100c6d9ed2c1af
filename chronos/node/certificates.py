"""The content of certificates: the names of clients, and what a strict verification refuses.

It is not the verification itself, which is that of OpenSSL in the handshake."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from msgspec import Struct

from chronos.config.model import AdminTlsConfig
from chronos.core.certificates import REMEDY

CERTIFICATES_KEPT = 1_024
"""Most certificates that are kept in their decoded form."""


class ShownCertificate(Struct, frozen=True, kw_only=True):
    """The names in a certificate that a client has shown, and the end of its validity."""

    names: tuple[str, ...]
    ends_s: float
    """End of its validity, in seconds since the epoch."""


def name_of(text: str) -> str:
    """The name in an entry, in the form in which names are compared; ValueError with a text for
    users."""
    kind, _, name = text.partition(":")
    if kind == "dns" and name:
        return f"dns:{name.lower()}"
    if kind == "uri" and name:
        return text
    try:
        subject = x509.Name.from_rfc4514_string(text).rfc4514_string()
    except ValueError:
        subject = ""
    if not subject:
        raise ValueError(
            f"the certificate {text!r}: write its subject, such as CN=shop,O=Example, or one of "
            "its alternative names, such as dns:shop.internal or uri:spiffe://example.org/shop"
        )
    return subject


@lru_cache(CERTIFICATES_KEPT)
def decoded(encoded: bytes) -> ShownCertificate:
    """The names in a certificate; none in one with names that have no form to compare."""
    try:
        found = x509.load_der_x509_certificate(encoded)
        names = [subject] if (subject := found.subject.rfc4514_string()) else []
        ends_s = found.not_valid_after_utc.timestamp()
        try:
            others = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return ShownCertificate(names=tuple(names), ends_s=ends_s)
        names += [f"dns:{name.lower()}" for name in others.get_values_for_type(x509.DNSName)]
        names += [
            f"uri:{name}" for name in others.get_values_for_type(x509.UniformResourceIdentifier)
        ]
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        # OpenSSL has read it, but not everything in it has a form that can be compared.
        return ShownCertificate(names=(), ends_s=0.0)
    return ShownCertificate(names=tuple(names), ends_s=ends_s)


E = TypeVar("E", bound=x509.ExtensionType)


def refused(tls: AdminTlsConfig, trusted: Sequence[bytes]) -> list[str]:
    """Return what Python 3.13 and later refuse in the certificate of this node, in the authority of
    it, and in the authorities of `client_ca`, each with the remedy.

    `trusted`: the other authorities that this machine trusts. A file or a certificate that cannot
    be read here is left to OpenSSL, which has read it or has refused it. A self-signed certificate
    of this node is its own authority; OpenSSL verifies one that stands alone as it always did."""
    own, authorities = _read(tls.certificate), _read(tls.client_ca)
    examined = dict.fromkeys(authorities, f"admin.tls.client_ca: {tls.client_ca}")
    examined |= dict.fromkeys(own, f"admin.tls.certificate: {tls.certificate}")
    if own and own[0].subject == own[0].issuer:
        del examined[own[0]]
    issuers = [each.issuer.public_bytes() for each in own]
    for encoded in trusted:
        # Most are not decoded: a system trusts many authorities, some with oddities.
        if any(issuer in encoded for issuer in issuers):
            other = _load(encoded)
            if (
                other is not None
                and other not in examined
                and any(_is_issued_by(each, other) for each in own)
            ):
                examined[other] = "an authority that this machine trusts"
    return [
        f"{place} ({each.subject.rfc4514_string()}) {' and '.join(found)}. {REMEDY}"
        for each, place in examined.items()
        if (found := _faults(each))
    ]


def _read(path: str | None) -> list[x509.Certificate]:
    try:
        return [] if path is None else x509.load_pem_x509_certificates(Path(path).read_bytes())
    except (OSError, ValueError, x509.InvalidVersion):
        return []


def _load(encoded: bytes) -> x509.Certificate | None:
    try:
        return x509.load_der_x509_certificate(encoded)
    except (ValueError, x509.InvalidVersion):
        return None


def _is_issued_by(certificate: x509.Certificate, other: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(other)
    except (InvalidSignature, TypeError, UnsupportedAlgorithm, ValueError):
        return False
    return certificate != other


def _faults(certificate: x509.Certificate) -> list[str]:
    """Return what a strict verification refuses in a certificate of a chain; OpenSSL's rules after
    RFC 5280."""
    is_self_issued = certificate.subject == certificate.issuer
    try:
        if certificate.version is not x509.Version.v3:
            return ["is an authority of X.509 version 1"] if is_self_issued else []
        constraints = _extension(certificate, x509.BasicConstraints)
        usage = _extension(certificate, x509.KeyUsage)
        own_key = _extension(certificate, x509.SubjectKeyIdentifier)
        issuers_key = _extension(certificate, x509.AuthorityKeyIdentifier)
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return []
    is_authority = constraints is not None and constraints.value.ca
    signs = usage is not None and usage.value.key_cert_sign
    rules = (
        (
            is_authority and not _is_critical(constraints),
            "has no critical Basic Constraints",
        ),
        (is_authority and usage is None, "has no Key Usage"),
        (
            signs and not is_authority,
            "has the Key Usage of an authority, and is none",
        ),
        (is_authority and own_key is None, "has no Subject Key Identifier"),
        (
            not is_self_issued
            and (issuers_key is None or issuers_key.value.key_identifier is None),
            "has no Authority Key Identifier",
        ),
        (
            _is_critical(own_key) or _is_critical(issuers_key),
            "has a critical key identifier",
        ),
    )
    return [text for is_broken, text in rules if is_broken]


def _extension(certificate: x509.Certificate, kind: type[E]) -> x509.Extension[E] | None:
    try:
        return certificate.extensions.get_extension_for_class(kind)
    except x509.ExtensionNotFound:
        return None


def _is_critical(extension: x509.Extension[E] | None) -> bool:
    return extension is not None and extension.critical
