"""The text of a connection's error: for a certificate that is not trusted, the reason; for one that
a strict verification refuses, also the remedy.

Since 3.13 Python verifies certificates strictly, as RFC 5280 asks (`ssl.VERIFY_X509_STRICT`). The
errors are those of sockets, `ssl` and aiohttp, and only their attributes are read: neither module
is imported. What a certificate itself contains is read in `node.certificates`."""

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
    """Return the error of the socket or of TLS in an error of aiohttp; any other error as it is."""
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None)
    return inner if isinstance(inner, BaseException) else error


def reason(error: BaseException) -> str:
    """Return the text of a connection's error; if a certificate was refused, why and what to do."""
    inner = cause(error)
    code = getattr(inner, "verify_code", None)
    if code is None:
        return getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
    message = str(getattr(inner, "verify_message", "")).rstrip(".")
    if code in STRICT:
        return f"its certificate, or the authority of it, is refused: {message}. {REMEDY}"
    return f"its certificate is not trusted: {message}"
