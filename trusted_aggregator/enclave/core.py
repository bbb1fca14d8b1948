"""The aggregator's enclave: verifies, counts once, charges before it releases, and gives one release per round.

Guarantee: about one user, everything that leaves this object over the life of a task is (ε, δ)-DP at the task's terms,
and at the policy's for all tasks of a population, whatever the host does: stop it, restart it from old state, run two
copies, replay or withhold contributions. What leaves is signed releases, the ledger, counts of uploads and refusals.
Only the keys that own a population spend its budget.

The object does no input or output and logs nothing. Calls that change its state answer with *writes*: sealed records
that the host makes durable, all or none, **before** it forwards the reply. ``commit`` then puts them in force: nothing
leaves that rests on a change before that. A host that does otherwise only harms itself.

Its parts share one ``EnclaveState`` and are handed what they call; ``rounds`` has the life of a round. Rules P22 to P34
of the privacy design; docs/threat-model.md names the test that attacks each.

The noise that it adds is exact and secret by its attested policy, or repeatable in tests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from odp import _validate
from odp.errors import ConfigurationError
from odp.privacy.mechanisms import GaussianNoise, IntegerNoise, OperatingSystemNoise
from odp.trust.enclave.policy import EnclavePolicy
from trusted_aggregator.enclave.hand_over import HandOver
from trusted_aggregator.enclave.large_values import LargeValues
from trusted_aggregator.enclave.owners import Owners
from trusted_aggregator.enclave.rounds import Rounds
from trusted_aggregator.enclave.state import EnclaveState
from trusted_aggregator.enclave.submissions import Submissions
from trusted_aggregator.enclave.tree import Tree


class AggregatorCore:
    """The enclave. Thread-safe: ``submit`` runs in parallel, everything else one at a time.

    Args:
        state: new, or as ``restoring`` or ``hand_over.TakingOver`` filled it.
        noise: what is added to the sums; the default draws exact Gaussians from the operating system's randomness.
            An object of the same process is the only way to another noise (rule P23), but for a policy with a
            ``test_noise_seed``, which evidence shows and devices refuse by default.

    Raises:
        ConfigurationError: the policy is of another role.
    """

    def __init__(self, state: EnclaveState, *, noise: IntegerNoise | None = None) -> None:
        policy = state.identity.policy
        if policy.role != "aggregator":
            raise ConfigurationError(f"Expected a policy of role 'aggregator', got role={policy.role!r}")
        self.state = state
        self.owners = Owners(state)
        self.large_values = LargeValues(state)
        self.rounds = Rounds(state, self.large_values, noise_of(policy) if noise is None else lambda round: noise)
        self.submissions = Submissions(state.identity.signing, state, state.closed)
        self.hand_over = HandOver(state)
        #: Of the root of a tree alone.
        self.tree = Tree(state, self.rounds) if policy.leaves else None


class TestNoise:
    """``NoiseSource`` of one round under a ``test_noise_seed``: protects nobody, since the seed is in the policy.

    The key stream of AES-256 in counter mode under a hash of seed and round. It does not depend on the task, whose id
    changes with its developer's key: two runs of one test add the same noise.
    """

    __test__ = False  # not a test of pytest's

    def __init__(self, seed: int, round: int) -> None:
        key = hashlib.sha256(f"odp test noise, protects nobody: {seed} {round}".encode()).digest()
        self._stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def random_bytes(self, count: int) -> bytes:
        """The next ``count`` bytes of the stream."""
        _validate.integer(low=0, high=2**31 - 1, count=count)
        return self._stream.update(bytes(count))


def noise_of(policy: EnclavePolicy) -> Callable[[int], IntegerNoise]:
    """The noise of each round, by its number: exact Gaussians from the system's randomness, or from a test's seed."""
    if (seed := policy.test_noise_seed) is None:
        exact = GaussianNoise(OperatingSystemNoise())
        return lambda round: exact
    return lambda round: GaussianNoise(TestNoise(seed, round))
