"""Client certificates as identities: the names in a certificate that entries of the token file may have.

    certificate: CN=shop,O=Example           the whole subject, as in RFC 4514
    certificate: dns:shop.internal           one of its alternative names
    certificate: uri:spiffe://example.org/shop

The authority was checked in the handshake (`admin.tls.client_ca`).
"""

import ssl
import time
from functools import lru_cache

from aiohttp import web
from cryptography import x509
from msgspec import Struct

CERTIFICATES_KEPT = 1_024
"""Most certificates that are kept in their decoded form."""


class _Certificate(Struct, frozen=True, kw_only=True):
    names: tuple[str, ...]
    ends_s: float
    """End of its validity, in seconds since the epoch."""


def name_of(text: str) -> str:
    """The name in an entry, in the form in which names are compared; ValueError with a text for users."""
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
            f"the certificate {text!r}: write its subject, such as CN=shop,O=Example, or one of its alternative names, such as "
            "dns:shop.internal or uri:spiffe://example.org/shop"
        )
    return subject


def names_shown(request: web.Request) -> tuple[str, ...]:
    """The names in the certificate that the client has shown; none without one, and none of one that has expired since."""
    found = None if request.transport is None else request.transport.get_extra_info("ssl_object")
    if not isinstance(found, ssl.SSLObject | ssl.SSLSocket):
        return ()
    encoded = found.getpeercert(binary_form=True)
    if not encoded:
        return ()
    certificate = _decoded(encoded)
    return certificate.names if time.time() < certificate.ends_s else ()


@lru_cache(CERTIFICATES_KEPT)
def _decoded(encoded: bytes) -> _Certificate:
    try:
        found = x509.load_der_x509_certificate(encoded)
        names = [subject] if (subject := found.subject.rfc4514_string()) else []
        ends_s = found.not_valid_after_utc.timestamp()
        try:
            others = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return _Certificate(names=tuple(names), ends_s=ends_s)
        names += [f"dns:{name.lower()}" for name in others.get_values_for_type(x509.DNSName)]
        names += [f"uri:{name}" for name in others.get_values_for_type(x509.UniformResourceIdentifier)]
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        # OpenSSL has read it, but not everything in it has a form that can be compared.
        return _Certificate(names=(), ends_s=0.0)
    return _Certificate(names=tuple(names), ends_s=ends_s)
