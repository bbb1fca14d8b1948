"""Statistics from reports that are private by themselves, which the aggregator's enclave makes anonymous."""
