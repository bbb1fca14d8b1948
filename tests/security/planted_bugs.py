"""Bugs that a developer could make, each planted in a copy of the tree: the test that guards against it has to fail.

Run it as a program; it prints a line for each bug, and exits with 1 where a test passed beside one::

    python tests/security/planted_bugs.py

A bug is a replacement of text that occurs once, so one that no longer fits the code is an error, which
``test_attack_list.py`` finds in seconds. ``planted-bugs.txt`` has what a run printed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SEEDED_BUGS = "tests/trusted_aggregator/modes/enclave/test_seeded_bugs.py"
CRASHES = "tests/trusted_aggregator/enclave/test_crashes.py"
LYING_SERVER = "tests/crypto/secure_aggregation/test_lying_server.py"
TRANSCRIPTS = "tests/security/test_transcripts.py"
ATTACK_LIST = "tests/security/test_attack_list.py"
ASSIGNMENT = "tests/device_runtime/tasks/test_assignment.py"


@dataclass(frozen=True)
class Bug:
    """A replacement of ``right``, which occurs once in ``path``, by ``wrong``.

    ``guard`` is the file that has to notice; ``test`` a test of it or, of the list of attacks, one that it lists.
    """

    name: str
    guard: str
    test: str
    path: str
    right: str
    wrong: str

    def planted(self, source: str) -> str:
        """``source`` with the bug. Raises ValueError where the right text does not occur once."""
        if source.count(self.right) != 1:
            raise ValueError(f"{self.name}: Expected {self.right!r} once in {self.path}")
        return source.replace(self.right, self.wrong)


BUGS = (
    Bug(
        "a sensitivity that forgets the constant in front of each row",
        SEEDED_BUGS,
        f"{SEEDED_BUGS}::test_the_audit_finds_nothing_in_the_code_as_it_is",
        "odp/algorithms/dpam/query.py",
        "reach = terms.full_row_bound * clip",
        "reach = terms.row_clip * clip",
    ),
    Bug(
        "a second contribution of one pseudonym counts under another id",
        SEEDED_BUGS,
        f"{SEEDED_BUGS}::test_the_audit_finds_nothing_in_the_code_as_it_is",
        "trusted_aggregator/modes/enclave/accepted_set.py",
        "            (self._pseudonyms, tag, tag, _PAIR + _PLACE),\n        ):\n            for number",
        "        ):\n            for number",
    ),
    Bug(
        "a release leaves before its hash is in force",
        CRASHES,
        f"{CRASHES}::TestRollback::test_nothing_leaves_that_rests_on_a_change_that_is_not_in_force",
        "trusted_aggregator/enclave/rounds.py",
        "in_force = population.ledger.find(task.id, parsed.round)",
        "in_force = population.find(task.id, parsed.round)",
    ),
    Bug(
        "the set of a charge is of ids, without the payloads",
        CRASHES,
        f"{CRASHES}::TestSwappedState::test_another_payload_under_the_same_id_voids_the_round",
        "trusted_aggregator/modes/enclave/accepted_set.py",
        'np.sort(pairs.view(f"S{_PAIR}").ravel()).tobytes()',
        'np.sort(pairs[:, :_ID].copy().view(f"S{_ID}").ravel()).tobytes()',
    ),
    Bug(
        "signatures of the committee are verified for neighbours alone",
        LYING_SERVER,
        f"{LYING_SERVER}::test_a_client_verifies_the_signatures_of_a_committee_that_has_no_neighbour_of_it",
        "odp/crypto/secure_aggregation/client.py",
        "            try:\n                verify(self._session.adverts[signer].identity",
        "            if signer not in self._neighbours:\n                continue\n"
        "            try:\n                verify(self._session.adverts[signer].identity",
    ),
    Bug(
        "more dropouts than declared are believed, down to the minimum",
        LYING_SERVER,
        f"{LYING_SERVER}::test_more_dropouts_than_declared_are_refused_although_the_minimum_and_the_neighbours_are_there",
        "odp/crypto/secure_aggregation/client.py",
        "fewest = self._session.fewest_survivors",
        "fewest = self._configuration.minimum",
    ),
    Bug(
        "a device without a contribution sends nothing",
        TRANSCRIPTS,
        f"{TRANSCRIPTS}::test_r183_an_unforeseen_error_of_an_algorithm_ends_in_an_upload_like_any_other",
        "device_runtime/round/contribution.py",
        "        return ComputedPayload(self._empty, None) if contribution is None else contribution\n",
        '        if contribution is None:\n            raise ServiceError("nothing to contribute")\n'
        "        return contribution\n",
    ),
    Bug(
        "rows are read as soon as a developer's code has made them",
        TRANSCRIPTS,
        f"{TRANSCRIPTS}::test_r182_a_developers_own_code_tells_no_bit_by_how_long_it_runs",
        "device_runtime/round/examples.py",
        "window = fixed_times.lasting(self.code_seconds + storing)",
        "window = fixed_times.lasting(self.code_seconds)",
    ),
    Bug(
        "a counter counts as written before its write",
        ATTACK_LIST,
        "tests/security/test_counters.py::"
        "test_r377_a_failed_write_of_a_counter_is_finished_by_a_later_call_and_advises_no_restore",
        "trusted_aggregator/state/population.py",
        "            self._guard.advance(parent=self._pending.parent, to=self._pending.stamp)\n"
        "            self._committed, self._pending = self._pending, None\n",
        "            self._committed, pending, self._pending = self._pending, self._pending, None\n"
        "            self._guard.advance(parent=pending.parent, to=pending.stamp)\n",
    ),
    Bug(
        "a catalogue is named by its number, without its hash",
        ATTACK_LIST,
        "tests/device_runtime/tasks/test_catalogues.py::"
        "test_r294_a_host_refuses_a_fork_and_a_rollback_of_what_it_knows",
        "device_runtime/tasks/catalogues.py",
        "if remembered.hashes[named.version - 1] != named.sha256:",
        "if len(remembered.hashes) < named.version:",
    ),
    Bug(
        "the version of a model is not compared with the round",
        ASSIGNMENT,
        f"{ASSIGNMENT}::test_a_signed_model_of_another_round_is_refused",
        "device_runtime/tasks/assignment.py",
        "if model.manifest.version != assignment.round:",
        "if model.manifest.version >= model.rounds:",
    ),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[""], help="bugs whose name has one of these in it")
    asked = parser.parse_args()
    bugs = [bug for bug in BUGS if any(part in bug.name for part in asked.only)]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info"))
        without = _judged(tree, sorted({bug.test for bug in bugs}))
        sys.stdout.write(f"without a bug: {without}\n")
        sys.stdout.flush()
        caught = 0
        for bug in bugs:
            file = tree / bug.path
            source = file.read_text(encoding="utf-8")
            file.write_text(bug.planted(source), encoding="utf-8")
            verdict = _judged(tree, [bug.test])
            file.write_text(source, encoding="utf-8")
            caught += verdict.startswith("caught")
            sys.stdout.write(f"{bug.name}: {verdict}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{caught} of {len(bugs)} caught\n")
    return int(caught < len(bugs) or "passed" not in without)


def _judged(tree: Path, tests: list[str]) -> str:
    """How the tests ended in the tree as it is now, in a line."""
    began = time.monotonic()
    # No bytecode: a file that changes twice within a second, to the same size, would be taken for the one before.
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-rf", "--tb=line", *tests]
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    failed = re.search(r"^FAILED \S*?::(\S+)", ran.stdout, re.MULTILINE)
    seconds = f"({time.monotonic() - began:.0f} s)"
    if ran.returncode == 0:
        return f"every test passed {seconds}"
    if ran.returncode != 1 or failed is None:
        return f"the tests did not run, pytest ended with {ran.returncode} {seconds}\n{ran.stdout}{ran.stderr}"
    return f"caught by {failed[1]} {seconds}"


if __name__ == "__main__":
    sys.exit(main())
