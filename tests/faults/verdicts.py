"""What a trial of the campaign must end with, as functions of what its programs left."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

#: configuration -> how its task may fail; every other task finishes, whatever happened. Vectors of a session of SecAgg+
#: cannot be made again, and a round has a limited number of sessions (docs/secure-aggregation.md).
FAILURES: dict[str, tuple[str, ...]] = {
    "secagg+": (
        r"(could not read the state of a round at the aggregator: )?round \d+ has failed: "
        r"its \d+ sessions ended without a sum\b.*; find the cause, and submit a new task",
        r"(could not close a round at the aggregator: )?round \d+ is void: .+; its charge stays, submit a new task",
    ),
}


def require_named_failure(configuration: str, failure: str) -> None:
    """Raises AssertionError where the task of a configuration must not fail for this reason."""
    named = any(re.fullmatch(pattern, failure) for pattern in FAILURES.get(configuration, ()))
    assert named, f"a task of {configuration} must not fail with {failure!r}"


def require_charged_as_counted(
    charged: Mapping[str, Sequence[int]], counted: Collection[int], *, without_sum: int | None = None
) -> None:
    """Raises AssertionError where a device is not charged for exactly the rounds in which it counted.

    Args:
        charged: by device, the rounds that its store charges the person for.
        counted: the rounds of which the ledger has a charge. Each counts all devices, which are the fewest it may.
        without_sum: the round in which the task failed: a device that sent to it may be charged for it.
    """
    for device, rounds in charged.items():
        free = {without_sum} - set(counted)
        expected = sorted([*counted, *free.intersection(rounds)])
        assert sorted(rounds) == expected, f"{device} is charged for {sorted(rounds)}, and counted in {sorted(counted)}"


def require_spent(charged: Mapping[str, Sequence[int]], round: int) -> None:
    """Raises AssertionError where a round ended without a sum although each device could still have joined a session.

    A device joins until it has made its vector, which its store charges for.
    """
    assert any(round in rounds for rounds in charged.values()), f"every device could still contribute to round {round}"
