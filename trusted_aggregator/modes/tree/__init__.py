"""Trees of aggregators: leaf enclaves take contributions and sum them; the root charges, adds the noise and signs.

A leaf holds no ledger and no noise, and nothing of it lasts. Its root gives it the secrets of each round
(``trusted_aggregator.enclave.tree`` and ``leaf_core``), and gets one sealed sum of each leaf. These take the
place of contributions in its own round (``enclave_half``). So what holds of the set of a round and its charge
holds here, too: the charge names the exact set of each leaf, a start with any other makes the round void, and noise is
drawn once.
"""
