"""The most frequent words of many devices by hashed sketches: no party is trusted."""
