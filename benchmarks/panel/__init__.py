"""How near DPAM's default comes to the best private method on many data sets, most of them invented."""
