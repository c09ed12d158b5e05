"""Writes a bundle's Core ML packages as a Swift package with a runtime of its own."""
