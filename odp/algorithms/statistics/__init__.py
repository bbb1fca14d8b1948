"""Federated analytics: histograms and means over the devices' own tables, in one round with one joint charge."""
