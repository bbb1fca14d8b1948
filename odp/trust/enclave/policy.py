"""The policy of an enclave: limits that it enforces for every task.

The policy's bytes are hashed into the enclave's evidence, so a device knows the limits before it sends anything, and
nobody can relax them for a running enclave.

An ``UpgradePolicy`` names the parties that approve a hand-over of an aggregator's ledger to other code: endorsers, and
their log. It is part of the policy, so that it is measured, attested and the same for both enclaves of a hand-over.
Without it an enclave hands over nothing, and its populations end with its code.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from pathlib import Path
from typing import Literal, get_args

from odp import _validate
from odp.crypto.leaves import MOST_LEAVES
from odp.crypto.public_keys import require_ed25519
from odp.errors import ConfigurationError
from odp.trust.enclave.log_policy import LogPolicy


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpgradePolicy:
    """Pinned values; public.

    Attributes:
        log: the transparency log, its witnesses, and the endorsers whose word counts.
        approvals: how many of these endorsers have to endorse the successor, from 1 to all of them.

    Raises:
        ConfigurationError: more approvals are asked for than there are endorsers, or none.
    """

    log: LogPolicy
    approvals: int = 1

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=max(1, len(set(self.log.endorser_keys))), approvals=self.approvals)
        if not self.log.endorser_keys:
            raise ConfigurationError("Expected at least one of endorser_keys: without any, no successor is endorsed")

    @classmethod
    def from_json(cls, values: object) -> UpgradePolicy:
        """The policy of a decoded JSON object. Raises ConfigurationError."""
        fields = _validate.fields_of(values, cls, where="upgrade")
        return cls(**{**fields, "log": LogPolicy.from_json(fields["log"])})

    @classmethod
    def load(cls, path: Path) -> UpgradePolicy:
        """Reads the JSON file that ``save`` writes. Raises ConfigurationError."""
        from odp._system.files.settings_file import load_settings

        return load_settings(path, cls.from_json, what="upgrade policy", parse=json.loads)

    def save(self, path: Path) -> None:
        """Writes the policy as JSON, atomically. Raises StateError."""
        text = json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n"
        from odp.transport import owner_files

        owner_files.write_atomically(path, text.encode(), mode=owner_files.PUBLIC)


Role = Literal["aggregator", "distributor", "leaf"]
ROLES: tuple[Role, ...] = get_args(Role)

Accumulation = Literal["oblivious", "direct"]
ACCUMULATIONS: tuple[Accumulation, ...] = get_args(Accumulation)

Selection = Literal["oblivious", "direct"]
SELECTIONS: tuple[Selection, ...] = get_args(Selection)

#: Keys that may found populations.
MOST_FOUNDERS = 32
_LARGEST_COHORT = 2**32 - 1
_LARGEST_POLICY_BYTES = 4096
_KEY = re.compile(r"[0-9a-f]{64}")
_KINDS: dict[str, type] = {
    "accumulation": str,
    "minimum_cohort": int,
    "population_epsilon": float,
    "population_delta": float,
    "role": str,
    "select": str,
}
#: Keys that a policy may leave out: it then has the default, and another program's reader need not know the key.
_OPTIONAL: dict[str, type] = {"founders": list, "leaves": int, "test_noise_seed": int, "upgrade": dict}
# A leaf has the policy of its root, so that both can check it.
_OF_POPULATIONS = ("aggregator", "leaf")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnclavePolicy:
    """Limits of one enclave; public.

    Attributes:
        accumulation: how the aggregator sums. "oblivious": at addresses that do not depend on what devices sent;
            "direct": faster, and shows everyone's items to whoever watches the enclave's memory accesses.
        founders: Ed25519 public keys (64 hex digits each) whose signature founds a population; without one, the
            aggregator takes no task. In any order, and each once.
        leaves: 0: devices contribute to this aggregator. Otherwise it is the root of a tree of so many leaves, which
            take the contributions.
        minimum_cohort: no release is made from fewer contributions, whatever the task says (rule P34).
        population_epsilon: all tasks of one population together may spend at most this epsilon (rule P4) ..
        population_delta: .. at this delta.
        role: what the enclave is for; a "leaf" has the policy of its root in all else.
        select: how the distributor reads rows. "oblivious": by passes over the whole table, which are the same for all
            keys; "direct": faster, and shows every device's keys to whoever watches the enclave's memory accesses.
        test_noise_seed: FOR TESTS ONLY. None: exact noise that nobody can repeat. A number: noise that a reader of the
            policy can compute and subtract, so that a run can be repeated to the byte. Such a policy protects nobody;
            a verifier refuses it unless its reference values say ``allow_test_noise``.
        upgrade: whose word lets an aggregator hand its populations to other code; None: nobody's.

    Raises:
        ConfigurationError: a value is out of range.
    """

    accumulation: Accumulation = "oblivious"
    founders: tuple[str, ...] = ()
    leaves: int = 0
    minimum_cohort: int = 100
    population_epsilon: float = 20.0
    population_delta: float = 1e-5
    role: Role
    select: Selection = "oblivious"
    test_noise_seed: int | None = None
    upgrade: UpgradePolicy | None = None

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=_LARGEST_COHORT, minimum_cohort=self.minimum_cohort)
        _validate.positive(population_epsilon=self.population_epsilon, population_delta=self.population_delta)
        if not self.population_delta < 1:
            raise ConfigurationError(f"Expected population_delta={self.population_delta!r} to be < 1")
        _validate.one_of(ROLES, role=self.role)
        _validate.integer(low=0, high=MOST_LEAVES, leaves=self.leaves)
        if self.leaves and self.role not in _OF_POPULATIONS:
            raise ConfigurationError(f"Expected no leaves for role={self.role!r}: they are the aggregator's")
        if self.role == "leaf" and not self.leaves:
            raise ConfigurationError("Expected leaves >= 1 for role='leaf': the number of leaves of its tree")
        _validate.one_of(ACCUMULATIONS, accumulation=self.accumulation)
        _validate.one_of(SELECTIONS, select=self.select)
        object.__setattr__(self, "founders", _founders(self.founders, self.role))
        if self.test_noise_seed is not None:
            _validate.integer(low=0, high=2**63 - 1, test_noise_seed=self.test_noise_seed)
        if self.upgrade is not None and self.role not in _OF_POPULATIONS:
            raise ConfigurationError(f"Expected no upgrade for role={self.role!r}: populations are the aggregator's")
        # 20 and 20.0 are one policy, so they must have one hash.
        object.__setattr__(self, "population_epsilon", float(self.population_epsilon))
        object.__setattr__(self, "population_delta", float(self.population_delta))

    def to_bytes(self) -> bytes:
        """Canonical JSON: keys sorted, no spaces, ASCII; optional fields only if they are set."""
        values = dataclasses.asdict(self)
        if self.test_noise_seed is None:
            del values["test_noise_seed"]
        if not self.founders:
            del values["founders"]
        if self.upgrade is None:
            del values["upgrade"]
        if not self.leaves:
            del values["leaves"]
        return json.dumps(values, sort_keys=True, separators=(",", ":")).encode("ascii")

    def as_role(self, role: Role) -> EnclavePolicy:
        """The same limits for another role: of a root the policy of its leaves, and the other way round."""
        return dataclasses.replace(self, role=role)

    @property
    def founder_keys(self) -> frozenset[bytes]:
        """``founders``, as bytes."""
        return frozenset(map(bytes.fromhex, self.founders))

    @functools.cached_property
    def sha256(self) -> bytes:
        """SHA-256 (32 bytes) of ``to_bytes()``: what evidence binds and reference values list."""
        return hashlib.sha256(self.to_bytes()).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> EnclavePolicy:
        """The policy from ``to_bytes``; any other form is refused.

        Raises:
            ConfigurationError: not canonical JSON, a key is unknown or missing, or a value is out of range.
        """
        if len(data) > _LARGEST_POLICY_BYTES:
            raise ConfigurationError(f"Expected a policy of at most {_LARGEST_POLICY_BYTES} bytes, got {len(data)}")
        try:
            values = json.loads(data.decode("ascii"))
        except (ValueError, RecursionError):
            raise ConfigurationError("Expected the enclave policy to be JSON in ASCII") from None
        values = _validate.json_object(values, _KINDS, _OPTIONAL, where="the enclave policy")
        for name, kind in (_KINDS | _OPTIONAL).items():
            if name in values and type(values[name]) is not kind:
                raise ConfigurationError(f"Expected {name} in the enclave policy to be of type {kind.__name__}")
        values["founders"] = tuple(values.get("founders", ()))
        if "upgrade" in values:
            values["upgrade"] = UpgradePolicy.from_json(values["upgrade"])
        policy = cls(**values)
        if policy.to_bytes() != data:
            raise ConfigurationError("Expected the enclave policy as canonical JSON: keys sorted and single, no spaces")
        return policy


def _founders(given: object, role: str) -> tuple[str, ...]:
    """The founders in ascending order, so that one set of them has one hash."""
    if not isinstance(given, (tuple, list)) or not all(isinstance(key, str) and _KEY.fullmatch(key) for key in given):
        raise ConfigurationError("Expected founders to be a list of public keys of 64 hex digits each")
    founders = tuple(sorted(given))
    if len(founders) > MOST_FOUNDERS or len(set(founders)) != len(founders):
        raise ConfigurationError(f"Expected at most {MOST_FOUNDERS} founders, each once, got {len(founders)}")
    if founders and role not in _OF_POPULATIONS:
        raise ConfigurationError(f"Expected no founders for role={role!r}: populations are the aggregator's")
    for key in founders:
        require_ed25519(bytes.fromhex(key), name="founder")
    return founders
