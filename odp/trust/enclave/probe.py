"""An enclave without a task: `odp enclave doctor` launches it to list the restrictions that hold on a machine."""

from __future__ import annotations

import socket

from odp.trust.enclave.guest import Guest


def run(channel: socket.socket, guest: Guest) -> None:
    """Waits until the host closes the channel."""
    channel.recv(1)
