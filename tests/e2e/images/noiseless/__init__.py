"""An aggregator's enclave without noise: an image of its own, measured as such, that no device accepts but in tests."""
