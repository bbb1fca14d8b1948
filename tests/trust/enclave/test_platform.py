"""The emulated platform's folder: created whole, private, stable; counters that never go down."""

from __future__ import annotations

import dataclasses
import errno
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from odp.errors import ConfigurationError, StateError
from odp.trust.enclave.chain import Tcb
from odp.trust.enclave.guest import Guest
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.registers import read

NOW = 1_750_000_000.0
DIGEST = "sha384:" + "ab" * 48


def test_the_folder_and_every_file_in_it_are_private(tmp_path: Path) -> None:
    platform = EmulatedPlatform.open(tmp_path / "p", clock=lambda: NOW)
    platform.counter("ledger").advance(expected=0, to=1)
    assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "p" / "slots").stat().st_mode) == 0o700
    files = [path for path in (tmp_path / "p").iterdir() if path.name != "slots"]
    assert {path.name for path in files} == {"platform.json", "platform.lock", "counters.json", "counters.lock"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_a_platform_is_the_same_after_it_was_opened_again(tmp_path: Path) -> None:
    first = EmulatedPlatform.open(tmp_path, clock=lambda: NOW)
    before = (tmp_path / "platform.json").read_bytes()
    again = EmulatedPlatform.open(tmp_path, clock=lambda: NOW + 1e6)
    assert again.root_certificate_pem == first.root_certificate_pem
    assert again.sealing_key(DIGEST) == first.sealing_key(DIGEST)
    assert (tmp_path / "platform.json").read_bytes() == before


def test_two_platforms_share_neither_root_nor_sealing_key(tmp_path: Path) -> None:
    first, second = (EmulatedPlatform.open(tmp_path / name, clock=lambda: NOW) for name in "ab")
    assert first.root_certificate_pem != second.root_certificate_pem
    assert first.sealing_key(DIGEST) != second.sealing_key(DIGEST)


def test_a_sealing_key_belongs_to_one_measurement(tmp_path: Path) -> None:
    platform = EmulatedPlatform.open(tmp_path, clock=lambda: NOW)
    assert len(platform.sealing_key(DIGEST)) == 32
    assert platform.sealing_key(DIGEST) != platform.sealing_key("sha384:" + "ac" * 48)


def test_a_platform_that_others_may_read_is_refused(tmp_path: Path) -> None:
    EmulatedPlatform.open(tmp_path, clock=lambda: NOW)
    (tmp_path / "platform.json").chmod(0o640)
    with pytest.raises(StateError, match="chmod 600"):
        EmulatedPlatform.open(tmp_path, clock=lambda: NOW)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"format": 1}', b'{"format": 2}', b'"format"', b"\xff"])
def test_a_damaged_platform_is_reported_and_left_alone(tmp_path: Path, content: bytes) -> None:
    EmulatedPlatform.open(tmp_path, clock=lambda: NOW)
    (tmp_path / "platform.json").write_bytes(content)
    with pytest.raises(StateError, match=r"platform\.json"):
        EmulatedPlatform.open(tmp_path, clock=lambda: NOW)
    assert (tmp_path / "platform.json").read_bytes() == content


def test_a_chip_key_that_the_certificate_does_not_name_is_corruption(tmp_path: Path) -> None:
    for name in "ab":
        EmulatedPlatform.open(tmp_path / name, clock=lambda: NOW)
    first, second = ((tmp_path / name / "platform.json").read_text().splitlines() for name in "ab")
    mixed = [b if '"chip_key"' in b else a for a, b in zip(first, second, strict=True)]
    assert mixed != first
    (tmp_path / "a" / "platform.json").write_text("\n".join(mixed))
    with pytest.raises(StateError, match="do not belong together"):
        EmulatedPlatform.open(tmp_path / "a", clock=lambda: NOW)


def test_a_crash_before_the_last_write_leaves_a_folder_that_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def crash(source: Path, target: Path) -> Path:
        if target.name == "platform.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", crash)
        with pytest.raises(StateError, match="disk full"):
            EmulatedPlatform.open(tmp_path, clock=lambda: NOW)
    assert not (tmp_path / "platform.json").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert EmulatedPlatform.open(tmp_path, clock=lambda: NOW).counter("ledger").value == 0


def _open(folder: Path) -> str:
    return EmulatedPlatform.open(folder, clock=lambda: NOW).root_certificate_pem


def test_openers_of_a_new_platform_at_the_same_time_get_the_same_one(tmp_path: Path) -> None:
    # Each opener has its own lock file handle, so threads exclude each other exactly as programs do.
    with ThreadPoolExecutor(4) as pool:
        roots = list(pool.map(_open, [tmp_path / "p"] * 8))
    assert len(set(roots)) == 1


def test_a_counter_starts_at_zero_goes_up_and_survives(tmp_path: Path) -> None:
    counter = EmulatedPlatform.open(tmp_path, clock=lambda: NOW).counter("ledger")
    assert counter.value == 0
    counter.advance(expected=0, to=3)
    counter.advance(expected=0, to=3)
    again = EmulatedPlatform.open(tmp_path, clock=lambda: NOW)
    assert again.counter("ledger").value == 3
    assert again.counter("other").value == 0


def test_a_counter_never_goes_down(tmp_path: Path) -> None:
    platform = EmulatedPlatform.open(tmp_path, clock=lambda: NOW)
    first, second = platform.counter("ledger"), platform.counter("ledger")
    first.advance(expected=0, to=5)
    for value in (0, 4):
        with pytest.raises(StateError, match="is at 5, not at"):
            second.advance(expected=0, to=value)
        with pytest.raises(StateError, match="cannot go down from 5"):
            second.advance(expected=5, to=value)
    assert first.value == 5


@pytest.mark.parametrize("value", [-1, True, 1.5, 2**63])
def test_a_counter_counts_in_whole_numbers(tmp_path: Path, value: int) -> None:
    with pytest.raises(ConfigurationError, match="to="):
        EmulatedPlatform.open(tmp_path, clock=lambda: NOW).counter("ledger").advance(expected=0, to=value)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"ledger": -1}', b'{"ledger": "5"}', b'{"ledger": 4.0}', b"\xff"])
def test_damaged_counters_are_never_read_as_zero(tmp_path: Path, content: bytes) -> None:
    counter = EmulatedPlatform.open(tmp_path, clock=lambda: NOW).counter("ledger")
    counter.advance(expected=0, to=5)
    (tmp_path / "counters.json").write_bytes(content)
    with pytest.raises(StateError, match="corrupt"):
        _ = counter.value


def test_lost_counters_do_not_start_again_at_zero(tmp_path: Path) -> None:
    counter = EmulatedPlatform.open(tmp_path, clock=lambda: NOW).counter("ledger")
    counter.advance(expected=0, to=5)
    (tmp_path / "counters.json").unlink()
    with pytest.raises(StateError, match=r"is gone: .* put that file back"):
        EmulatedPlatform.open(tmp_path, clock=lambda: NOW)
    with pytest.raises(StateError, match="is gone"):
        _ = counter.value
    with pytest.raises(StateError, match="is gone"):
        counter.advance(expected=0, to=1)


def test_r401_a_platform_whose_slots_are_gone_is_refused_by_name_until_somebody_makes_the_folder(
    tmp_path: Path,
) -> None:
    slots = EmulatedPlatform.open(tmp_path, clock=lambda: NOW).slots(DIGEST)
    (tmp_path / "slots").rmdir()
    for act in (lambda: EmulatedPlatform.open(tmp_path, clock=lambda: NOW), lambda: slots.create("round")):
        with pytest.raises(StateError, match="slots is gone, and with it the keys of open rounds and of streams"):
            act()
    assert not (tmp_path / "slots").exists()
    (tmp_path / "slots").mkdir(mode=0o700)
    EmulatedPlatform.open(tmp_path, clock=lambda: NOW).slots(DIGEST).create("round")


def test_a_platform_of_an_earlier_version_gets_its_folder_of_slots_once(tmp_path: Path) -> None:
    EmulatedPlatform.open(tmp_path, clock=lambda: NOW)
    (tmp_path / "slots").rmdir()
    (tmp_path / "counters.json").write_bytes(b'{"ledger": 5}')
    assert EmulatedPlatform.open(tmp_path, clock=lambda: NOW).counter("ledger").value == 5
    (tmp_path / "slots").rmdir()
    with pytest.raises(StateError, match="slots is gone"):
        EmulatedPlatform.open(tmp_path, clock=lambda: NOW)


def _advances(folder: Path, to: int) -> bool:
    try:
        EmulatedPlatform.open(folder, clock=lambda: NOW).counter("ledger").advance(expected=0, to=to)
    except StateError:
        return False
    return True


def test_of_many_sides_that_move_one_counter_from_one_value_exactly_one_succeeds(tmp_path: Path) -> None:
    EmulatedPlatform.open(tmp_path, clock=lambda: NOW)
    values = (7, 3, 40, 12, 1, 25, 39, 2)
    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(lambda value: _advances(tmp_path, value), values))
    assert sum(won) == 1
    assert EmulatedPlatform.open(tmp_path, clock=lambda: NOW).counter("ledger").value == values[won.index(True)]


@pytest.mark.parametrize("name", ["", "../x", "A", "a" * 65])
def test_names_are_identifiers(tmp_path: Path, name: str) -> None:
    platform = EmulatedPlatform.open(tmp_path, clock=lambda: NOW)
    with pytest.raises(ConfigurationError, match="name"):
        platform.counter(name)
    with pytest.raises(ConfigurationError, match="name"):
        platform.launch(image_digest=DIGEST, policy=b"", name=name)


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    return EmulatedPlatform.open(tmp_path, clock=lambda: NOW).launch(
        image_digest=DIGEST, policy=b"policy", name="aggregator"
    )


@pytest.mark.parametrize("length", [0, 15, 65])
def test_a_nonce_of_a_wrong_length_gets_no_evidence(guest: Guest, length: int) -> None:
    guest.bind_keys(hpke_public=bytes(32), signing_public=bytes(32))
    with pytest.raises(ConfigurationError, match=f"16 to 64 bytes, got {length}"):
        guest.evidence(bytes(length))


def test_an_enclave_without_keys_gets_no_evidence(guest: Guest) -> None:
    with pytest.raises(StateError, match="no keys"):
        guest.evidence(bytes(32))


def test_keys_are_bound_once(guest: Guest) -> None:
    for _ in range(2):
        guest.bind_keys(hpke_public=bytes(32), signing_public=b"s" * 32)
    with pytest.raises(StateError, match="other keys"):
        guest.bind_keys(hpke_public=bytes(32), signing_public=b"t" * 32)
    with pytest.raises(ConfigurationError, match="signing_public"):
        guest.bind_keys(hpke_public=bytes(32), signing_public=bytes(31))
    assert sum(event.startswith("keys ") for _, event in read(guest.evidence(bytes(32)).event_log)) == 1


def test_the_log_begins_with_the_configuration_and_goes_on_with_what_the_enclave_says(guest: Guest) -> None:
    guest.extend("task ab")
    guest.bind_keys(hpke_public=bytes(32), signing_public=bytes(32))
    log = guest.evidence(bytes(32)).event_log
    assert [register for register, _ in read(log)] == ["configuration", "configuration", "runtime", "runtime"]
    assert read(log)[2] == ("runtime", "task ab")


def test_the_configuration_register_is_the_platforms_alone(tmp_path: Path) -> None:
    guest = EmulatedPlatform.open(tmp_path).launch(image_digest=DIGEST, policy=b"", name="aggregator")
    with pytest.raises(ConfigurationError, match="register='configuration'"):
        guest.extend_register("configuration", "policy of another")


def test_a_sealing_key_belongs_to_measurement_debug_bit_and_firmware(tmp_path: Path) -> None:
    platform = EmulatedPlatform.open(tmp_path)
    keys = {
        platform.launch(image_digest=digest, policy=policy, name="aggregator", debug=debug).sealing_key()
        for digest, debug in ((DIGEST, False), (DIGEST, True), ("sha384:" + "ac" * 48, False))
        for policy in (b"", b"another")
    }
    assert len(keys) == 3
    platform._issued = dataclasses.replace(platform._issued, tcb=Tcb(boot_loader=1, tee=1, snp=2, microcode=1))
    assert platform.launch(image_digest=DIGEST, policy=b"", name="aggregator").sealing_key() not in keys


def test_a_platform_keeps_the_firmware_that_it_was_made_with(tmp_path: Path) -> None:
    tcb = Tcb(boot_loader=0, tee=127, snp=128, microcode=255)
    EmulatedPlatform.open(tmp_path, tcb=tcb)
    assert EmulatedPlatform.open(tmp_path)._issued.tcb == tcb
