"""How fixed-shape functions serve the stages of Tortoise: padding, masks, windows and cropping on the host."""
