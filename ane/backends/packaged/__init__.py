"""Fixed-shape packages: selection of packages and functions, and the slot pools of the decoder's kv-cache."""
