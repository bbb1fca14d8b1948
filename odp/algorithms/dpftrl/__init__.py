"""DP-FTRL: clipped updates released as one stream, whose prefix sums have little noise without any sampling."""
