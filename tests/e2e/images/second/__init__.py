"""An aggregator that does all that the real one does, by another measurement: what one hands over to the other."""
