"""ONNX graphs of the networks in ``ane.models.tortoise.networks``: what they compute, their precision, and the weights they share."""
