"""What the rest stands on: errors, files, folders, interruption, timing, the machine. Imports nothing else of ane."""
