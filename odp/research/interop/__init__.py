"""Bridges to other platforms of federated learning."""
