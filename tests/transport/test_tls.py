"""TLS identities: given files are checked, a development CA is made once and repairs what a kill left behind."""

from __future__ import annotations

import datetime
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from odp._system.files.state_folder import StateFolder
from odp.errors import ConfigurationError
from odp.transport import tls
from odp.transport.tls import check_files, development_identity, identity_for, load_identity


@pytest.fixture
def state(tmp_path: Path):
    with StateFolder.open(tmp_path / "state", "server") as folder:
        yield folder


def _public(pem: bytes) -> bytes:
    return (
        x509.load_pem_x509_certificate(pem)
        .public_key()
        .public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def _public_of_key(pem: bytes) -> bytes:
    return (
        serialization.load_pem_private_key(pem, None)
        .public_key()
        .public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def test_a_restart_keeps_the_certificate_and_the_key_is_private(state: StateFolder) -> None:
    first, second = development_identity(state), development_identity(state)
    assert first == second
    for name in ("tls.key", "ca/ca.key"):
        assert stat.S_IMODE(state.path(name).stat().st_mode) == 0o600


def test_a_new_ca_means_a_new_certificate(state: StateFolder, tmp_path: Path) -> None:
    first = development_identity(state)
    second = development_identity(state, tmp_path / "elsewhere")
    assert second.ca_pem != first.ca_pem
    issued = x509.load_pem_x509_certificate(second.certificate_pem)
    issued.verify_directly_issued_by(x509.load_pem_x509_certificate(second.ca_pem))


def test_a_kill_between_key_and_certificate_is_repaired(state: StateFolder, tmp_path: Path) -> None:
    """The new key lies beside the old certificate, which the CA did issue."""
    development_identity(state)
    with StateFolder.open(tmp_path / "second", "server") as other:
        state.write_atomically("tls.key", development_identity(other, state.path("ca")).key_pem)
    repaired = development_identity(state)
    assert _public(repaired.certificate_pem) == _public_of_key(repaired.key_pem)
    assert development_identity(state) == repaired


@pytest.mark.parametrize("damage", [b"", b"garbage"])
@pytest.mark.parametrize("name", ["tls.key", "tls.pem"])
def test_a_damaged_identity_is_made_again(state: StateFolder, name: str, damage: bytes) -> None:
    before = development_identity(state)
    state.write_atomically(name, damage)
    after = development_identity(state)
    assert after.ca_pem == before.ca_pem
    assert _public(after.certificate_pem) == _public_of_key(after.key_pem)


def test_an_expired_certificate_is_made_again(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    tls._development_ca(state.path("ca"))
    monkeypatch.setattr(tls, "_VALID_DAYS", -0.5)
    development_identity(state)
    monkeypatch.undo()
    after = x509.load_pem_x509_certificate(development_identity(state).certificate_pem)
    assert after.not_valid_after_utc > datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)


@pytest.mark.parametrize(("name", "content"), [("ca.key", b"garbage"), ("ca.pem", b"garbage")])
def test_a_damaged_ca_is_named_and_never_replaced(state: StateFolder, name: str, content: bytes) -> None:
    development_identity(state)
    state.path("ca").joinpath(name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"{name} is not"):
        development_identity(state)
    assert state.path("ca").joinpath(name).read_bytes() == content


def test_a_ca_key_of_another_ca_is_named(state: StateFolder, tmp_path: Path) -> None:
    development_identity(state)
    with StateFolder.open(tmp_path / "second", "server") as other:
        development_identity(other)
        state.path("ca").joinpath("ca.key").write_bytes(other.path("ca").joinpath("ca.key").read_bytes())
    with pytest.raises(ConfigurationError, match=r"ca.key is not the key of ca.pem"):
        development_identity(state)


def test_programs_that_start_at_once_share_one_ca(tmp_path: Path) -> None:
    found: list[bytes] = []

    def start(number: int) -> None:
        with StateFolder.open(tmp_path / str(number), "server") as folder:
            found.append(development_identity(folder, tmp_path / "ca").ca_pem)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1


def test_given_files_are_taken_as_they_are(state: StateFolder, tmp_path: Path) -> None:
    development_identity(state)
    certificate, key, ca = state.path("tls.pem"), state.path("tls.key"), state.path("ca") / "ca.pem"
    given = identity_for(state, certificate=certificate, key=key, ca=ca, ca_folder=None)
    assert given == load_identity(certificate=certificate, key=key, ca=ca)
    assert given.key_pem == key.read_bytes()


def test_a_key_of_another_certificate_is_refused(state: StateFolder, tmp_path: Path) -> None:
    development_identity(state)
    with StateFolder.open(tmp_path / "second", "server") as other:
        development_identity(other)
        key = other.path("tls.key")
        with pytest.raises(ConfigurationError, match=r"is not the key of .*give a matching --key"):
            load_identity(certificate=state.path("tls.pem"), key=key, ca=state.path("ca") / "ca.pem")


@pytest.mark.parametrize("given", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1)])
def test_some_of_the_three_files_are_never_silently_ignored(state: StateFolder, given: tuple[int, ...]) -> None:
    files = dict(zip(("certificate", "key", "ca"), (Path("x") if one else None for one in given), strict=True))
    with pytest.raises(ConfigurationError, match="together, or none of them"):
        check_files(**files)
    with pytest.raises(ConfigurationError, match="together, or none of them"):
        identity_for(state, **files, ca_folder=None)


def test_an_encrypted_key_is_refused_by_name(state: StateFolder, tmp_path: Path) -> None:
    identity = development_identity(state)
    key = tmp_path / "locked.key"
    key.write_bytes(
        serialization.load_pem_private_key(identity.key_pem, None).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
        )
    )
    with pytest.raises(ConfigurationError, match=r"locked.key is not an unencrypted PEM private key"):
        load_identity(certificate=state.path("tls.pem"), key=key, ca=state.path("ca") / "ca.pem")
