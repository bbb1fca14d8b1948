"""Gradient steps of DPAM: the rounds, the device's part, the enclave's sums, and the server's filter."""
