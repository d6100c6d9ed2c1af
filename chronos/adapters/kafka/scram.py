"""The client's side of SCRAM (RFC 5802), which proves a password without sending it."""

import hashlib
import hmac
from base64 import b64decode, b64encode

SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class Scram:
    """The client's side of SCRAM (RFC 5802), without channel binding."""

    def __init__(self, hash_name: str, name: str, password: str, nonce: str) -> None:
        self._hash = hash_name
        self._password = password.encode()
        self._bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._nonce = nonce
        self._signature = b""

    def first(self) -> bytes:
        """Return the client's first message."""
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the client's final message. Raises ValueError if the server did not continue the
        nonce."""
        text = server_first.decode()
        fields = dict(part.split("=", 1) for part in text.split(","))
        if not fields.get("r", "").startswith(self._nonce) or not {"s", "i"} <= fields.keys():
            raise ValueError("the broker answered with another SCRAM nonce")
        salted = hashlib.pbkdf2_hmac(
            self._hash, self._password, b64decode(fields["s"]), int(fields["i"])
        )
        client_key = self._mac(salted, b"Client Key")
        without_proof = f"c=biws,r={fields['r']}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        signature = self._mac(hashlib.new(self._hash, client_key).digest(), signed)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        self._signature = self._mac(self._mac(salted, b"Server Key"), signed)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Raise ValueError unless the server knows the password too."""
        if server_final != b"v=" + b64encode(self._signature):
            raise ValueError("the broker's SCRAM signature is wrong")

    def _mac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self._hash)
