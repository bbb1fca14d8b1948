"""Draw and Discard: generalised linear models from reports that are private by themselves."""
