"""How a model is measured, and what it is compared with, on data that a researcher owns. No algorithm is imported."""
