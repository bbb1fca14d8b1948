"""Erasable slots of the emulated platform: secrets that cannot be restored after they are erased.

A sealing key can be derived again for as long as chip and code are the same. What is sealed under a slot's secret as
well is lost with the slot, even to somebody who reads every other secret of the chip later. Hardware keeps such secrets
in an index of a TPM's non-volatile memory, or with a key management service.

A slot is a file of its own, overwritten before it is removed. Copies that a file system or a backup keeps are not
overwritten: as all of the emulation, slots give the protocol of the hardware and none of its protection.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from pathlib import Path

from odp import _validate
from odp._system.files.durability import Health, sync
from odp.errors import StateError
from odp.transport import owner_files

#: What makes a folder that of a chip.
CHIP_FILE = "platform.json"
SECRET_BYTES = 32

_ERASED = bytes(SECRET_BYTES)


def require_slots_folder(folder: Path) -> None:
    """Raises StateError where the folder of all slots is lost: each of them would look erased."""
    if not folder.is_dir():
        raise StateError(
            f"{folder} is gone, and with it the keys of open rounds and of streams: put it back from a copy of the "
            "chip. If there is none, make an empty folder of that name with mode 0700: what open rounds hold is lost "
            "then, and streams end"
        )


class EmulatedSlots:
    """The slots of one measurement in a platform's folder; implements ``ErasableSlots``, also across programs.

    Args:
        folder: made with the platform.
        owner: what no other code may have: measurement and debug bit.
        health: of the platform's disk.
    """

    def __init__(self, folder: Path, *, owner: bytes, health: Health) -> None:
        self._folder, self._health, self._owner = folder, health, owner

    def create(self, name: str) -> bytes:
        path = self._path(name)
        with self._health:
            require_slots_folder(self._folder)
            self._erase(path)
            secret = os.urandom(SECRET_BYTES)
            owner_files.write_atomically(path, secret, mode=owner_files.PRIVATE)
        return secret

    def read(self, name: str) -> bytes | None:
        path = self._path(name)
        secret = owner_files.read_private(path, limit=SECRET_BYTES)
        if secret is not None and len(secret) != SECRET_BYTES:
            raise StateError(f"{path} is corrupt: it is no slot")
        # A power cut can bring back the name of a file whose bytes were overwritten.
        return None if secret == _ERASED else secret

    def erase(self, names: Collection[str]) -> None:
        with self._health:
            for path in [self._path(name) for name in names]:
                self._erase(path)

    def _path(self, name: str) -> Path:
        _validate.identifier(name=name)
        return self._folder / hashlib.sha256(self._owner + name.encode()).hexdigest()

    def _erase(self, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _not_erased(path, error) from error
        try:
            os.pwrite(descriptor, _ERASED, 0)
            sync(descriptor, path)
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _not_erased(path, error) from error
        finally:
            os.close(descriptor)


def _not_erased(path: Path, error: OSError) -> StateError:
    return StateError(f"cannot erase {path}: {(error.strerror or 'input/output error').lower()}")
