"""Private federated learning: devices randomize their updates themselves, and the enclave adds noise to the sum."""
