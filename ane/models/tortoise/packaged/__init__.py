"""The stages of Tortoise on fixed-shape package functions: padding, masks, windows and cropping in NumPy."""
