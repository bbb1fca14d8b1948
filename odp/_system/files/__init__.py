"""Files and folders that survive a crash, and that no one else reads."""
