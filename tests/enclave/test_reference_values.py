"""Reference values: strict on disk, and silent ones accept nothing (test_verifier.py has the denials)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odp.enclave.platform import EmulatedPlatform
from odp.enclave.reference_values import ReferenceValues
from odp.errors import ConfigurationError

NOW = 1_750_000_000.0
DIGEST = "sha384:" + "ab" * 48
POLICY = "cd" * 32


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return EmulatedPlatform.open(tmp_path_factory.mktemp("platform"), now=NOW).root_certificate_pem


def make(root: str) -> ReferenceValues:
    return ReferenceValues((root,), {"aggregator": (DIGEST,)}, {"aggregator": (POLICY,)}, allow_emulated=True)


def test_a_saved_file_comes_back_equal(root: str, tmp_path: Path) -> None:
    values = make(root)
    values.save(tmp_path / "reference.json")
    assert ReferenceValues.load(tmp_path / "reference.json") == values


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
