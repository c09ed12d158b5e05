"""Hold the lowest layer, which all other packages use: errors, files, folders, interruption, timing, the machine."""
