"""Entry module that no image can be built of."""

raise ValueError("this enclave is not built")
