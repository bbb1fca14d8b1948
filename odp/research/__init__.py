"""Simulations, published experiments and other platforms; no program imports them."""
