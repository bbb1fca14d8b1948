"""Federated training of any model by clipped updates: what DP-FedAvg and DP-SGD share."""
