"""DP-FedAvg: devices train a model on their own examples, and the server moves it by the noisy mean of what changed."""
