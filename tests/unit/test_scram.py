"""SCRAM, against the examples of its standards."""

from __future__ import annotations

import pytest

from chronos.adapters.kafka.scram import Scram

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="  # noqa: E501
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_example_of_the_standard_is_authenticated() -> None:
    scram = Scram("sha256", "user", "pencil", NONCE)
    assert scram.first() == FIRST
    assert scram.final(SERVER_FIRST) == FINAL
    scram.verify(SERVER_FINAL)


def test_a_server_with_another_nonce_or_password_is_refused() -> None:
    scram = Scram("sha256", "user", "pencil", NONCE)
    with pytest.raises(ValueError, match="nonce"):
        scram.final(b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    scram.final(SERVER_FIRST)
    with pytest.raises(ValueError, match="signature"):
        scram.verify(b"v=AAAA")
