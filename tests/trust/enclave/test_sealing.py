"""Sealed bytes open under their own key and context, and under nothing else."""

from __future__ import annotations

import pytest

from odp.crypto.hpke import DecryptionError
from odp.errors import ConfigurationError
from odp.trust.enclave.sealing import OVERHEAD, seal, unseal

KEY = bytes(range(32))


def test_sealed_bytes_come_back() -> None:
    sealed = seal(KEY, b"ledger", b"task 1")
    assert len(sealed) == 6 + OVERHEAD
    assert unseal(KEY, sealed, b"task 1") == b"ledger"


def test_sealing_twice_never_uses_one_nonce() -> None:
    assert len({seal(KEY, b"ledger", b"")[:12] for _ in range(100)}) == 100


def test_another_context_another_key_and_any_flipped_byte_are_refused() -> None:
    sealed = seal(KEY, b"ledger", b"counter 7")
    attempts = [(KEY, sealed, b"counter 8"), (KEY, sealed, b""), (bytes(32), sealed, b"counter 7")]
    attempts += [(KEY, sealed[:i] + bytes([sealed[i] ^ 1]) + sealed[i + 1 :], b"counter 7") for i in range(len(sealed))]
    attempts += [(KEY, sealed[:length], b"counter 7") for length in (0, 12, OVERHEAD - 1, len(sealed) - 1)]
    for key, given, context in attempts:
        with pytest.raises(DecryptionError):
            unseal(key, given, context)


def test_a_key_of_a_wrong_length_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="32 bytes, got 16"):
        seal(bytes(16), b"", b"")
    with pytest.raises(ConfigurationError, match="32 bytes, got 16"):
        unseal(bytes(16), bytes(64), b"")
