"""Tasks of local trust: devices report to this server alone, and no enclave takes part."""
