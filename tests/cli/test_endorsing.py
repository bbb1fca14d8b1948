"""Endorsements of enclaves and pins of a log, from the command line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Printed

from odp.crypto.note import Kind, NoteKey
from odp.errors import ConfigurationError, StateError
from odp.operations.local.log_setup import reference_values
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy, UpgradePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.endorsements import EndorsementFile, check_withdrawal, open_endorsement


@pytest.fixture
def values(tmp_path: Path) -> Path:
    path = tmp_path / "reference_values.json"
    reference_values(tmp_path / "platform", EnclavePolicy(role="aggregator")).save(path)
    return path


def test_endorse_and_withdraw_from_the_command_line(odp: Callable[..., Printed], values: Path, tmp_path: Path) -> None:
    files = ["--key", tmp_path / "e.key"]
    printed = odp("enclave", "endorse", "--reference-values", values, "--output", tmp_path / "e.json", *files).out
    endorser = printed.strip()
    assert len(bytes.fromhex(endorser)) == 32
    image = ReferenceValues.load(values).image_digests["aggregator"][0]
    with pytest.raises(ConfigurationError, match="did you mean 'sha384:"):
        odp("enclave", "withdraw", image[:-1] + "x", "--endorsements", tmp_path / "e.json", *files)
    with pytest.raises(ConfigurationError, match="no such file"):
        odp("enclave", "withdraw", image, "--endorsements", tmp_path / "e.json", "--key", tmp_path / "none.key")
    for _ in range(2):
        done = odp("enclave", "withdraw", image, "--endorsements", tmp_path / "e.json", *files)
        assert done.out == "1 endorsements withdrawn\n"
    file = EndorsementFile.load(tmp_path / "e.json")
    (withdrawal,) = file.withdrawals
    stated = next(one for one in map(open_endorsement, file.endorsements) if one.image_digest == image)
    assert stated.endorser == endorser
    check_withdrawal(withdrawal, stated)


def test_a_key_of_no_endorser_of_the_reference_values_endorses_nothing(
    odp: Callable[..., Printed], values: Path, tmp_path: Path
) -> None:
    """Not one that a wrong folder would have made anew, nor another one."""
    key, output = tmp_path / "e.key", tmp_path / "e.json"
    named = odp("enclave", "endorser-key", "--key", key).out.strip()
    log = LogPolicy(log_keys=(NoteKey.generate("example.com/log").public(Kind.NOTE).text,), endorser_keys=(named,))
    dataclasses.replace(ReferenceValues.load(values), log=log).save(values)
    other = tmp_path / "other.key"
    arguments = ("enclave", "endorse", "--reference-values", values, "--output", output)
    with pytest.raises(ConfigurationError, match=r"other.key: no such file. .* names its endorsers"):
        odp(*arguments, "--key", other)
    assert not other.exists()
    odp("enclave", "endorser-key", "--key", other)
    with pytest.raises(ConfigurationError, match="of no endorser that"):
        odp(*arguments, "--key", other)
    assert not output.exists()
    assert odp(*arguments, "--key", key).out.strip() == named


def test_a_forgotten_option_of_the_policy_and_a_founder_that_is_no_file_are_named(
    odp: Callable[..., Printed], values: Path, tmp_path: Path
) -> None:
    arguments = ("enclave", "endorse", "--reference-values", values, "--output", tmp_path / "e.json")
    key = ("--key", tmp_path / "e.key")
    with pytest.raises(ConfigurationError, match=r"repeat the options of `odp aggregator run` .* --founder"):
        odp(*arguments, *key, "--founder", "ab" * 32)
    with pytest.raises(ConfigurationError, match=r"--founder='server-keys\.txt' .* there is no such file"):
        odp(*arguments, *key, "--founder", "server-keys.txt")


def test_reference_values_name_a_log_where_it_is_given(odp: Callable[..., Printed], tmp_path: Path) -> None:
    output, log = tmp_path / "r.json", NoteKey.generate("example.com/log").public(Kind.NOTE)
    witness = NoteKey.generate("example.com/w").public(Kind.COSIGNATURE)
    odp(
        "enclave", "reference-values", "--platform", tmp_path / "p", "--output", output, "--log-key", log.text,
        "--endorser-key", "ab" * 32, "--witness-key", witness.text,
    )  # fmt: skip
    found = ReferenceValues.load(output).log
    assert found is not None
    assert (found.origin, found.quorum, found.endorser_keys) == ("example.com/log", 1, ("ab" * 32,))
    with pytest.raises(ConfigurationError, match="--log-key"):
        odp("enclave", "reference-values", "--platform", tmp_path / "p", "--output", output, "--quorum", 0)
    content = json.loads(output.read_text())
    content["log"]["quorun"] = 1
    output.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match=r"r\.json: .*did you mean 'quorum'"):
        ReferenceValues.load(output)


def test_the_keys_of_a_deployment_are_printed_before_anything_runs(odp: Callable[..., Printed], tmp_path: Path) -> None:
    """What `odp up` does in one process, operators of several machines do with commands."""
    state = tmp_path / "server"
    key, log = (odp("server", name, "--state", state).out.strip() for name in ("key", "log-key"))
    assert odp("server", "log-key", "--state", state, "--json").json == {"log_key": log}
    (tmp_path / "elsewhere" / "log").mkdir(parents=True)
    with pytest.raises(StateError, match="its reference values name its key"):
        odp("server", "log-key", "--state", tmp_path / "elsewhere")
    endorser = odp("enclave", "endorser-key", "--key", tmp_path / "e.key").out.strip()
    assert odp("enclave", "endorser-key", "--key", tmp_path / "e.key", "--json").json == {"endorser_key": endorser}
    upgrade = tmp_path / "upgrade.json"
    named = ("--log-key", log, "--endorser-key", endorser)
    odp("enclave", "upgrade-policy", *named, "--output", upgrade)
    assert UpgradePolicy.load(upgrade) == UpgradePolicy(log=LogPolicy(log_keys=(log,), endorser_keys=(endorser,)))
    with pytest.raises(ConfigurationError, match="approvals"):
        odp("enclave", "upgrade-policy", *named, "--approvals", 2, "--output", upgrade)
    roots = []
    for chip in ("one", "another"):
        pem = odp("enclave", "root", "--platform", tmp_path / chip).out
        assert pem == EmulatedPlatform.open(tmp_path / chip).root_certificate_pem
        (tmp_path / f"{chip}.pem").write_text(pem)
        roots += ["--root", tmp_path / f"{chip}.pem"]
    policy = ("--founder", key, "--upgrade", upgrade)
    output = tmp_path / "r.json"
    odp("enclave", "reference-values", *roots, *policy, *named, "--output", output)
    found = ReferenceValues.load(output)
    assert len(set(found.roots)) == 2
    assert not (tmp_path / "odp-state").exists()
    printed = odp(
        "enclave", "endorse", "--reference-values", output, *policy, "--key", tmp_path / "e.key",
        "--output", tmp_path / "e.json",
    ).out  # fmt: skip
    assert printed.strip() == endorser


def test_devices_accept_the_code_of_before_during_an_upgrade(
    odp: Callable[..., Printed], values: Path, tmp_path: Path
) -> None:
    """Until the old code is withdrawn, devices have a file that lists both; those that are listed twice come once."""
    before, old = ReferenceValues.load(values), "sha384:" + "0" * 96
    digests = {role: (*digests, old) for role, digests in before.image_digests.items()}
    addresses = {"aggregator": ("a.example:1",), "issuer": ("i.example:2",)}
    dataclasses.replace(before, roots=(), image_digests=digests, addresses=addresses).save(values)
    output = tmp_path / "both.json"
    odp(
        "enclave", "reference-values", "--platform", tmp_path / "platform", "--keep", values, "--output", output,
        "--aggregator", "a.example:3",
    )  # fmt: skip
    found = ReferenceValues.load(output)
    assert found.image_digests == digests
    assert found.addresses == {"aggregator": ("a.example:3", "a.example:1"), "issuer": ("i.example:2",)}
    assert dataclasses.replace(found, image_digests=before.image_digests, addresses={}) == before
