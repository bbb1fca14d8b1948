"""An aggregator's enclave without noise: an image of its own, measured as such, which no device accepts but in tests."""
