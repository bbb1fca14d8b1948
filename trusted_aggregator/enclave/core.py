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
"""

from __future__ import annotations

from odp.errors import ConfigurationError
from odp.privacy.mechanisms import IntegerNoise
from trusted_aggregator.enclave.hand_over import HandOver
from trusted_aggregator.enclave.large_values import LargeValues
from trusted_aggregator.enclave.noise import noise_of
from trusted_aggregator.enclave.owners import Owners
from trusted_aggregator.enclave.rounds import Rounds
from trusted_aggregator.enclave.state import EnclaveState
from trusted_aggregator.enclave.submissions import Submissions
from trusted_aggregator.enclave.tree import Tree


class AggregatorCore:
    """The enclave. Thread-safe: ``submit`` runs in parallel, everything else one at a time.

    Args:
        state: new, or as ``restoring`` or ``taking_over`` filled it.
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
