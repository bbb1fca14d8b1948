"""The start of every enclave by its host: launch, restore its keys, and report its restrictions."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from odp._system.files.state_folder import StateFolder
from odp.crypto.hpke import DecryptionError
from odp.errors import StateError
from odp.transport.logs import Log
from odp.trust.enclave import enclave_start
from odp.trust.enclave.channel import Connection
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.slots import CHIP_FILE

_SEALED_KEYS = "enclave.sealed"
_LOST_CHIP = (
    "If its chip is lost, so are its ledgers, and their budgets count as spent: move the state folder aside, and found "
    "populations under new names"
)


def taken_over(state: Path, image: str) -> StateError:
    """The error of a start on ``state`` by other code than ``image``, which has taken it over."""
    return StateError(
        f"another version, {image}, has taken over what state folder {state} holds: start that version, which goes on "
        "where this one was; only a hand-over from it, with `odp enclave upgrade`, leads back to this one"
    )


class LaunchedEnclave(Protocol):
    """A running enclave, and the socket to it."""

    @property
    def channel(self) -> socket.socket:
        """The host's end of the enclave's only socket."""

    @property
    def image_digest(self) -> str:
        """The platform's measurement."""

    @property
    def restrictions(self) -> tuple[str, ...]:
        """The restrictions that the kernel enforces here, in words."""

    @property
    def refused(self) -> tuple[str, ...]:
        """The restrictions that this kernel does not grant."""

    def close(self) -> None:
        """Ends the enclave and waits for its processes. Idempotent."""


class Launch(Protocol):
    """``launcher.launch``, which starts processes, or ``in_thread``'s, which does not."""

    def __call__(self, *, platform_folder: Path, entry: str, policy: bytes) -> LaunchedEnclave:
        """Starts the enclave of the module ``entry`` under ``policy`` on the platform in ``platform_folder``."""


def launching(images: Path | None) -> Launch:
    """The launcher of every program: platform and enclave are processes of their own.

    Their images are in a folder of ``odp enclave build``; None: they are those of this installation.
    """

    def launch_images(*, platform_folder: Path, entry: str, policy: bytes) -> LaunchedEnclave:
        from odp.trust.enclave import launcher

        return launcher.launch(platform_folder=platform_folder, entry=entry, policy=policy, images=images)

    return launch_images


launch_process: Launch = launching(None)


def has_sealed(state: Path) -> bool:
    """Whether the enclave of a state folder sealed something."""
    return (state / _SEALED_KEYS).exists()


def require_chip(state: Path, platform: Path) -> None:
    """Returns unless the enclave of a state folder sealed something, and no chip is in the folder ``platform``.

    Called before any program starts on that folder: a new chip there would be in the way of the right one.

    Raises StateError.
    """
    if has_sealed(state) and not (platform / CHIP_FILE).exists():
        raise StateError(
            f"state folder {state} was sealed on the chip in {platform}, which is gone: a backup holds no chip, as it "
            f"holds no hardware; put that folder back. {_LOST_CHIP}"
        )


@dataclass(frozen=True)
class Begun:
    """An enclave with its keys; the part of the start that depends on its role comes next."""

    connection: Connection
    image_digest: str


def begin(
    *,
    launch: Launch,
    state: StateFolder,
    platform: Path | None,
    entry: str,
    policy: EnclavePolicy,
    may_renew: bool,
    log: Log,
    undo: contextlib.ExitStack,
    successor: str = "",
) -> Begun:
    """Launches the enclave on the platform in the folder ``platform`` (default: inside ``state``).

    ``may_renew`` says that nothing but the keys was ever sealed: then new code, another platform or another policy
    simply start with new keys, and devices attest again. ``undo`` ends the enclave. ``successor`` is the code that took
    the state over last; empty where none did.

    Raises StateError where the keys cannot be opened and other sealed state hangs on them, where their chip is gone,
    and where it does not start.
    """
    folder = platform if platform is not None else state.path("platform")
    if not may_renew:
        require_chip(state.root, folder)
    launched = launch(platform_folder=folder, entry=entry, policy=policy.to_bytes())
    undo.callback(launched.close)
    log.event(
        "enclave_started",
        image=launched.image_digest,
        restrictions=", ".join(launched.restrictions) or "none",
        not_granted=", ".join(launched.refused) or "none",
    )
    connection = Connection(launched.channel)
    stored = state.read(_SEALED_KEYS)
    try:
        sealed = enclave_start.start(connection, stored)
    except DecryptionError as error:
        if not may_renew:
            if successor not in ("", launched.image_digest):
                raise taken_over(state.root, successor) from error
            raise StateError(
                f"state folder {state.root} was sealed by another version of the {policy.role}, under another policy "
                f"or on another chip than that in {folder}; run it as before, on its own chip, and hand it over to "
                f"this version with `odp enclave upgrade`; where that was done, start the folder of its --state. "
                f"{_LOST_CHIP}"
            ) from error
        log.warning("enclave_keys_renewed", image=launched.image_digest)
        sealed = enclave_start.start(connection, None)
    if sealed != stored:
        state.write_atomically(_SEALED_KEYS, sealed)
    return Begun(connection, launched.image_digest)
