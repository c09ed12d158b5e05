"""Export a Tortoise model with Core ML packages as a Swift package, which contains a runtime written in Swift."""
