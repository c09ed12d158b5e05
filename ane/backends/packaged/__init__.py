"""The backend on fixed-shape Core ML packages: selection of packages and functions, and the decoder's kv-cache."""
