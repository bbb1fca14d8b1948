"""Entry module that is not hostile, with numpy and cryptography: what attackers of its files aim at."""

from __future__ import annotations

import socket

import numpy as np
from cryptography.hazmat.primitives import hashes

from odp.trust.enclave.guest import Guest


def run(channel: socket.socket, guest: Guest) -> None:
    """Computes with both, and waits until the host closes the channel."""
    matrix = np.ones((8, 8))
    digest = hashes.Hash(hashes.SHA256())
    digest.update((matrix @ matrix).tobytes())
    digest.finalize()
    channel.recv(1)
