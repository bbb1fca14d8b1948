"""Published experiments run again on this platform, with what was published beside what is found."""
