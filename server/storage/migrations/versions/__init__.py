"""One module for each revision. Those that were released never change."""
