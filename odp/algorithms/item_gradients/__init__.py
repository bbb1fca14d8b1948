"""DP-SGD on an item table: devices solve their own rows, and send clipped gradients of the table. ``odp.DPSGD``."""
