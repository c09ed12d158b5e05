"""Export Tortoise's Core ML packages as a Swift package with a runtime."""
