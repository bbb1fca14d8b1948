"""The key that encrypts a host's stores: its source, and its description for a person.

There is one key of 256 random bits per state folder. When the first store is created or encrypted, the key comes from
the first of these that exists:

1. given: the file that ``--key-file`` or the variable ``ODP_DEVICE_KEY_FILE`` names;
2. in the keyring of the operating system, where the library ``keyring`` is installed and has a backend;
3. in a file of its own beside the stores, readable by its owner alone.

``store-key.json`` of the folder says which; it holds no secret. Every store has a key of its own, derived by
HKDF-SHA256 (RFC 5869) from the host's key and the name of its file.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from odp._system.extras import advice as missing, is_installed
from odp._system.files.private_files import make_folders, read_private
from odp._system.files.state_folder import state_errors, write_atomically
from odp._system.posix import fcntl
from odp.errors import StateError

VARIABLE = "ODP_DEVICE_KEY_FILE"
DESCRIPTOR = "store-key.json"
KEY_FILE = "store.key"
GIVEN, KEYRING, FILE = "given", "keyring", "file"
PLAIN_HEADER = b"SQLite format 3\0"

#: What a store is encrypted with.
CIPHER = "AES-256-CBC and HMAC-SHA512 per page (SQLCipher)"

_FORMAT = 1
_KEY_BYTES = 32
_SALT_BYTES = 16
_SERVICE = "odp-device-store"
_LARGEST = 4096
_STORE_INFO, _CHECK_INFO = b"odp/v1/device-store\0", b"odp/v1/device-store-key-check"


class Ring(Protocol):
    """The two methods of the library ``keyring`` that are needed."""

    def get_password(self, service: str, username: str) -> str | None:
        """The secret, or None."""

    def set_password(self, service: str, username: str, password: str) -> None:
        """Stores a secret."""


@dataclass(frozen=True)
class StoreKey:
    """The key of one store: 256 bits, and the salt (128 bits) at the start of its file."""

    key: bytes = field(repr=False)
    salt: bytes


@dataclass(frozen=True)
class HostKey:
    """A host's key. ``source`` is "given", "keyring" or "file"; ``where`` names the file or the entry."""

    key: bytes = field(repr=False)
    source: str
    where: str

    def of_store(self, path: Path) -> StoreKey:
        """The key of one store, derived from its file name: a folder may be moved, a file must not be renamed."""
        derived = _derived(self.key, _STORE_INFO + path.stem.encode(), _KEY_BYTES + _SALT_BYTES)
        return StoreKey(derived[:_KEY_BYTES], derived[_KEY_BYTES:])

    @property
    def check(self) -> str:
        """A check value that tells a wrong key from the right one, and reveals nothing else about it."""
        return _derived(self.key, _CHECK_INFO, 16).hex()


@dataclass(frozen=True)
class AtRest:
    """How a state folder's stores are protected on disk; ``warning`` names what is not protected, or is empty."""

    cipher: str
    source: str
    where: str
    warning: str = ""

    @property
    def text(self) -> str:
        """One line for a person."""
        place = {
            GIVEN: f"given by the file {self.where}",
            KEYRING: f"in the keyring of the operating system, entry {self.where}",
            FILE: f"in the file {self.where} beside the stores",
        }[self.source]
        return f"encrypted with {self.cipher}; key {place}" + (f"; {self.warning}" if self.warning else "")


def folder_of(store: Path) -> Path:
    """The state folder of a store's path (``store_path``)."""
    return store.parent.parent.parent


def os_keyring() -> Ring | None:
    """The operating system's keyring; None where the library or a backend of it is missing."""
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        return None
    try:
        backend = keyring.get_keyring()
        return backend if backend.priority > 0 else None
    except (KeyringError, RuntimeError):
        return None


def no_keyring() -> Ring | None:
    """A keyring for a host that stores its key in a file."""
    return None


def host_key(
    folder: Path,
    *,
    key_file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    ring: Callable[[], Ring | None] = os_keyring,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> HostKey:
    """The key of a state folder's stores; on first use it is chosen and stored.

    Args:
      folder: the state folder.
      key_file: a given key: 32 bytes, or 64 hexadecimal digits; comes before the variable ``ODP_DEVICE_KEY_FILE``.
      environment: default ``os.environ``.
      ring: finds the keyring of the operating system.
      random_bytes: source of a new key.

    Raises:
      StateError: the key is missing, unreadable, readable by others, or not the one that the stores were made with;
        nothing was changed.
    """
    named = (os.environ if environment is None else environment).get(VARIABLE)
    key_path = key_file if key_file is not None else Path(named) if named else None
    if (descriptor := _descriptor(folder)) is None:
        with state_errors(folder):
            make_folders(folder)
        with folder_lock(folder):
            if (descriptor := _descriptor(folder)) is None:
                return _chosen(folder, key_path, ring, random_bytes)
    source, where, check = descriptor
    if key_path is not None:
        key = HostKey(_read(key_path), GIVEN, str(key_path))
    elif source == KEYRING:
        key = HostKey(_from_ring(where, ring), KEYRING, where)
    else:
        key = HostKey(_read(folder / KEY_FILE if source == FILE else Path(where)), source, where)
    if not hmac.compare_digest(key.check, check):
        raise StateError(
            f"the key ({key.source}: {key.where}) is not the key of the stores of {folder} "
            f"({source}: {where}); nothing was changed; give the right key with --key-file or {VARIABLE}"
        )
    if source == GIVEN and key_path is not None and str(key_path.resolve()) != where:
        _describe(folder, HostKey(key.key, GIVEN, str(key_path.resolve())))  # the key file was moved
    return key


def at_rest(folder: Path) -> AtRest | None:
    """How the stores of a state folder are protected; None if it has no store yet. Raises StateError."""
    if (descriptor := _descriptor(folder)) is None:
        return None
    source, where, _ = descriptor
    warning = ""
    if source == FILE:
        warning = (
            "a copy of the whole folder contains both: "
            "pip install 'odp-platform[keyring]', or give a key file on another disk"
        )
    return AtRest(CIPHER, source, where, warning)


def _chosen(
    folder: Path, key_path: Path | None, ring: Callable[[], Ring | None], random: Callable[[int], bytes]
) -> HostKey:
    """The key of a new folder, stored before its first use."""
    if (lost := next(_encrypted(folder), None)) is not None and key_path is None:
        raise StateError(
            f"device store {lost} is encrypted and {folder / DESCRIPTOR}, which says where its key is, is missing; "
            f"restore that file, or give the key with --key-file or {VARIABLE}; nothing was changed"
        )
    if key_path is not None:
        key = HostKey(_read(key_path), GIVEN, str(key_path.resolve()))
        if lost is not None and lost.read_bytes()[:_SALT_BYTES] != key.of_store(lost).salt:
            raise StateError(f"the key {key_path} is not the key of device store {lost}")
    else:
        key = _new_key(folder, ring, random)
    _describe(folder, key)
    return key


def _describe(folder: Path, key: HostKey) -> None:
    content = {"format": _FORMAT, "source": key.source, "where": key.where, "check": key.check}
    with state_errors(folder):
        write_atomically(folder / DESCRIPTOR, json.dumps(content, indent=1).encode() + b"\n")


def _new_key(folder: Path, ring: Callable[[], Ring | None], random: Callable[[int], bytes]) -> HostKey:
    path = folder / KEY_FILE
    if path.exists():  # its making was interrupted before the descriptor was written
        return HostKey(_read(path), FILE, str(path))
    key = random(_KEY_BYTES)
    if (backend := ring()) is not None:
        entry = f"{_SERVICE}/{random(8).hex()}"
        try:
            backend.set_password(_SERVICE, entry, key.hex())
            if backend.get_password(_SERVICE, entry) == key.hex():
                return HostKey(key, KEYRING, entry)
        except Exception:  # a keyring that is locked or broken raises what its backend likes
            pass
    with state_errors(folder):
        write_atomically(path, key.hex().encode() + b"\n")
    return HostKey(key, FILE, str(path))


@functools.lru_cache(maxsize=8)
def _from_ring(entry: str, ring: Callable[[], Ring | None]) -> bytes:
    backend = ring()
    advice = f"unlock it, or give the key with --key-file or {VARIABLE}"
    if backend is None:
        why = f"no keyring is available{'' if is_installed('keyring') else ': ' + missing('keyring')}"
        raise StateError(f"the stores' key is in the keyring (entry {entry}), and {why}; {advice}")
    try:
        text = backend.get_password(_SERVICE, entry)
    except Exception as error:  # whatever its backend raises
        raise StateError(f"the keyring does not give the stores' key, entry {entry}; {advice}") from error
    if text is None or re.fullmatch("[0-9a-f]{64}", text) is None:
        raise StateError(f"the keyring has no stores' key, entry {entry}; {advice}")
    return bytes.fromhex(text)


def _read(path: Path) -> bytes:
    """The key from a file that only its owner can read."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_LARGEST)
    except OSError as error:
        raise StateError(
            f"the stores' key file {path} cannot be read: {error.strerror}; "
            f"restore it, or give the key with --key-file or {VARIABLE}; nothing was changed"
        ) from error
    if stat.S_ISREG(mode) and mode & 0o077:
        raise StateError(f"the stores' key file {path} can be read by others; `chmod 600` it")
    text = data.strip()
    if re.fullmatch(rb"[0-9a-fA-F]{64}", text):
        return bytes.fromhex(text.decode())
    if len(data) == _KEY_BYTES:
        return data
    raise StateError(f"Expected the key file {path} to hold 32 bytes or 64 hexadecimal digits; `openssl rand -hex 32`")


def _descriptor(folder: Path) -> tuple[str, str, str] | None:
    """(source, where, check), or None if the folder has no key yet."""
    path = folder / DESCRIPTOR
    try:
        values = json.loads(read_private(path))
        described = values["source"], values["where"], values["check"]
        if values["format"] != _FORMAT or not all(isinstance(part, str) for part in described):
            raise ValueError("another format")
        if described[0] not in (GIVEN, KEYRING, FILE):
            raise ValueError("an unknown source")
        return described
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}; check its permissions") from error
    except (ValueError, TypeError, KeyError) as error:
        raise StateError(
            f"{path} is damaged, and the place of the stores' key is in it; restore it from a backup"
        ) from error


def _encrypted(folder: Path) -> Iterator[Path]:
    """The encrypted stores of a folder."""
    for path in sorted(folder.glob("devices/*/*.sqlite")):
        with path.open("rb") as file:
            header = file.read(len(PLAIN_HEADER))
        if header not in (b"", PLAIN_HEADER):
            yield path


def _derived(key: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=None, info=info).derive(key)


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Holds the folder's exclusive lock; the kernel frees it when the process dies. Raises StateError."""
    with state_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with state_errors(folder):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
