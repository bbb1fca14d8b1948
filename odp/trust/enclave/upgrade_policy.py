"""The parties that approve a hand-over of an enclave's ledger to other code: endorsers, and their log.

Part of an aggregator's policy, so that it is measured, attested and the same for both enclaves of a hand-over. Without
it an enclave hands over nothing, and its populations end with its code.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from odp import _validate
from odp.errors import ConfigurationError
from odp.trust.enclave.log_policy import LogPolicy

_LARGEST_FILE = 1 << 16


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
        if not isinstance(values, Mapping):
            raise ConfigurationError("Expected upgrade to be an object")
        _validate.known_keys(map(str, values), ("approvals", "log"), where="upgrade")
        if "log" not in values:
            raise ConfigurationError("Missing key 'log' in upgrade")
        return cls(log=LogPolicy.from_json(values["log"]), approvals=values.get("approvals", 1))

    @classmethod
    def load(cls, path: Path) -> UpgradePolicy:
        """Reads the JSON file that ``save`` writes. Raises ConfigurationError."""
        try:
            with path.open("rb") as file:
                data = file.read(_LARGEST_FILE + 1)
            if len(data) > _LARGEST_FILE:
                raise ConfigurationError(f"Expected at most {_LARGEST_FILE} bytes")
            return cls.from_json(json.loads(data.decode("utf-8")))
        except OSError as error:
            raise ConfigurationError(f"cannot read {path}: {(error.strerror or 'error').lower()}") from None
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"{path} holds no upgrade policy: {error}") from None

    def save(self, path: Path) -> None:
        """Writes the policy as JSON, atomically. Raises StateError."""
        text = json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n"
        from odp.transport import owner_files

        owner_files.write_atomically(path, text.encode(), mode=owner_files.PUBLIC)
