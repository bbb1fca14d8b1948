"""How good trained models are on the devices' own examples, by noisy sums, with intervals."""
