"""Make a model with fewer layers, because torch's exporter to ONNX needs about 20 ms for every operation of a graph."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ane.bundles import Bundle
from ane.bundles.weights import layout
from ane.bundles.writing import write_bundle


def shallow(model: Bundle, destination: Path, **sizes: Mapping[str, Any]) -> Bundle:
    """Write the model with smaller networks, whose tensors are the first numbers along each axis of the model's own.

    Args:
        model: The model.
        destination: Folder of the new bundle.
        sizes: The changed fields of the configs, by the name of the network.
    """
    contents = model.contents()
    configs = {network: replace(config, **sizes.get(network, {})) for network, config in contents.configs.items()}

    def tensors(network: str) -> dict[str, Tensor]:
        whole, shapes = model.tensors(network), layout(model.family.networks[network], configs[network]).shapes
        return {key: whole[key][tuple(map(slice, shape))].clone() for key, shape in shapes.items()}

    return write_bundle(replace(contents, configs=configs, tensors=tensors), destination)
