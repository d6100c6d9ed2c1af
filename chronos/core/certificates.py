"""Certificates that were refused: the reason and the remedy, from the error of a connection.

Since 3.13 Python verifies certificates strictly, as RFC 5280 asks (`ssl.VERIFY_X509_STRICT`). The
errors are those of `ssl` and aiohttp, and only their attributes are read."""

STRICT = range(79, 95)
"""OpenSSL's codes for what a strict verification refuses: X509_V_ERR_INVALID_CA to
X509_V_ERR_EC_KEY_EXPLICIT_PARAMS."""

REMEDY = (
    "Python 3.13 and later refuse it: make the authority again with Basic Constraints and Key "
    "Usage, both critical, and a Subject Key Identifier, and its certificates with an Authority "
    "Key Identifier; docs/how-to/secure.md has the commands (An authority that every client "
    "accepts)"
)


def cause(error: BaseException) -> BaseException:
    """The error of the socket or of TLS in an error of aiohttp; any other error as it is."""
    found = getattr(error, "certificate_error", None) or getattr(error, "os_error", None)
    return found if isinstance(found, BaseException) else error


def reason(error: BaseException) -> str:
    """The text of an error of a connection; if a certificate was refused, why and what to do."""
    found = cause(error)
    code = getattr(found, "verify_code", None)
    if code is None:
        return getattr(found, "strerror", None) or str(found) or type(found).__name__
    message = str(getattr(found, "verify_message", "")).rstrip(".")
    if code in STRICT:
        return f"its certificate, or the authority of it, is refused: {message}. {REMEDY}"
    return f"its certificate is not trusted: {message}"
