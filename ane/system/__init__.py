"""Services that all other packages use: errors, files, folders, interruption, timing, the machine. The lowest layer."""
