"""What the library ``cryptography`` imports when a function is first called: for programs that can open no file later.

Its compiled part looks for classes of these modules by name.
"""

from __future__ import annotations

import importlib

LATE: tuple[str, ...] = (
    "cryptography.exceptions",
    "cryptography.hazmat.backends.openssl.backend",
    "cryptography.hazmat.primitives.asymmetric.ec",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "cryptography.hazmat.primitives.asymmetric.padding",
    "cryptography.hazmat.primitives.asymmetric.rsa",
    "cryptography.hazmat.primitives.asymmetric.utils",
    "cryptography.hazmat.primitives.asymmetric.x25519",
    "cryptography.hazmat.primitives.ciphers.aead",
    "cryptography.hazmat.primitives.serialization",
    "cryptography.x509",
)


def load() -> None:
    """Imports them."""
    for name in LATE:
        importlib.import_module(name)
