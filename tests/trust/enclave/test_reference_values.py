"""Reference values: strict on disk, and silent ones accept nothing (test_verifier.py has the denials)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odp.errors import ConfigurationError
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.reference_values import ReferenceValues, Validity

NOW = 1_750_000_000.0
DIGEST = "sha384:" + "ab" * 48
POLICY = "cd" * 32


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return EmulatedPlatform.open(tmp_path_factory.mktemp("platform"), clock=lambda: NOW).root_certificate_pem


def make(root: str) -> ReferenceValues:
    return ReferenceValues((root,), {"aggregator": (DIGEST,)}, {"aggregator": (POLICY,)}, allow_emulated=True)


def test_a_saved_file_comes_back_equal(root: str, tmp_path: Path) -> None:
    values = make(root)
    values.save(tmp_path / "reference.json")
    assert ReferenceValues.load(tmp_path / "reference.json") == values


def test_the_later_keys_may_be_left_out_and_come_back_when_given(root: str, tmp_path: Path) -> None:
    path = tmp_path / "reference.json"
    plain = make(root)
    plain.save(path)
    later = {
        "image_validity": {DIGEST: {"not_before": 1.0, "not_after": 2.0}},
        "withdrawn_images": [DIGEST],
        "minimum_tcb": {"snp": 3},
        "revoked_certificates": ["a1"],
        "revoked_chips": ["cd" * 64],
        "required_restrictions": ["seccomp"],
    }
    short = {key: value for key, value in json.loads(path.read_text()).items() if key not in later}
    path.write_text(json.dumps(short))
    assert ReferenceValues.load(path) == plain
    path.write_text(json.dumps({**short, **later}))
    found = ReferenceValues.load(path)
    assert found.image_validity == {DIGEST: Validity(not_before=1, not_after=2)}
    assert (found.minimum_tcb, found.required_restrictions) == ({"snp": 3}, ("seccomp",))
    found.save(path)
    assert ReferenceValues.load(path) == found


def test_debug_and_emulation_are_never_allowed_by_silence(root: str, tmp_path: Path) -> None:
    path = tmp_path / "reference.json"
    make(root).save(path)
    content = json.loads(path.read_text())
    del content["allow_debug"]
    path.write_text(json.dumps(content))
    assert ReferenceValues.load(path).allow_debug is False
    del content["allow_emulated"]
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match="allow_emulated"):
        ReferenceValues.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"roots": ["not a certificate"]}, "PEM certificate"),
        ({"roots": "-----BEGIN"}, "list of strings"),
        ({"roots": [1]}, "list of strings"),
        ({"image_digests": {"aggregator": DIGEST}}, "list of strings"),
        ({"image_digests": {"aggregator": ["sha256:" + "ab" * 32]}}, "sha384"),
        ({"image_digests": {"aggregator": [DIGEST.upper()]}}, "sha384"),
        ({"image_digests": {"agregator": [DIGEST]}}, "did you mean 'aggregator'"),
        ({"image_digests": [DIGEST]}, "map roles"),
        ({"policy_sha256": {"aggregator": [POLICY + "\n"]}}, "policy_sha256"),
        ({"allow_emulated": 1}, "allow_emulated"),
        ({"allow_debug": "no"}, "allow_debug"),
        ({"max_age_seconds": 0}, "max_age_seconds"),
        ({"max_age_seconds": 1e9}, "max_age_seconds"),
        ({"image_validity": {DIGEST: {"not_befor": 1}}}, "did you mean 'not_before'"),
        ({"image_validity": {DIGEST: {"not_before": -1}}}, "not_before"),
        ({"image_validity": {DIGEST: 1}}, "not_before and not_after"),
        ({"image_validity": {"aggregator": {}}}, "sha384"),
        ({"image_validity": [DIGEST]}, "map measurements"),
        ({"withdrawn_images": [DIGEST[:-1]]}, "withdrawn_images"),
        ({"withdrawn_images": DIGEST}, "list of strings"),
        ({"minimum_tcb": {"microcod": 1}}, "did you mean 'microcode'"),
        ({"minimum_tcb": {"snp": 256}}, "snp"),
        ({"minimum_tcb": {"snp": True}}, "snp"),
        ({"minimum_tcb": [1]}, "minimum_tcb"),
        ({"revoked_certificates": ["0A"]}, "revoked_certificates"),
        ({"revoked_certificates": ["0a"]}, "revoked_certificates"),
        ({"revoked_chips": ["ab"]}, "revoked_chips"),
        ({"required_restrictions": ["Seccomp"]}, "required_restrictions"),
        ({"alow_debug": True}, "did you mean 'allow_debug'"),
    ],
)
def test_a_wrong_value_is_named_with_the_file(root: str, tmp_path: Path, changes: object, message: str) -> None:
    path = tmp_path / "reference.json"
    make(root).save(path)
    assert isinstance(changes, dict)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ConfigurationError, match=message) as caught:
        ReferenceValues.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b" " * (1 << 20) + b"{}"])
def test_a_file_that_is_not_reference_values_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "reference.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"reference\.json"):
        ReferenceValues.load(tmp_path / "reference.json")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        ReferenceValues.load(tmp_path / "none.json")


def test_two_certificates_in_one_entry_are_refused(root: str) -> None:
    with pytest.raises(ConfigurationError, match="one PEM certificate"):
        ReferenceValues((root + root,), {}, {}, allow_emulated=True)
