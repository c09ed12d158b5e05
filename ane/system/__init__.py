"""Provide the lowest layer of the tree: errors, files, folders, child processes, interruption, timing, the machine.

All other packages may import from here, and nothing here imports from them.
"""
