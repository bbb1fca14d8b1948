"""DP-SGD: devices send clipped gradients on their own examples, and the server steps by their noisy mean."""
