"""An enclave image that does what an enclave must not be able to do, on the test's command."""
