"""Weights of a package's graphs in one file, each tensor once however many graphs use it."""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir

FILE = "weights.bin"
ALIGNMENT = 4096        # ONNX Runtime maps a tensor into memory, instead of reading it, where a page begins
SMALLEST = 1024         # bytes; what is smaller stays in the graph


class Weights:
    """Writes the tensors of graphs to ``folder``/weights.bin, and makes the graphs refer to them there."""

    def __init__(self, folder: Path):
        self.folder, self.places = folder, {}
        (folder / FILE).touch()

    def take(self, model: "onnx_ir.Model") -> None:
        """Move the graph's large tensors into the file; those that are there already are not written again."""
        import onnx_ir as ir

        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.nbytes >= SMALLEST:
                offset = self._written(tensor)
                value.const_value = ir.ExternalTensor(FILE, offset, tensor.nbytes, tensor.dtype, shape=tensor.shape,
                                                      name=value.name, base_dir=self.folder)

    def _written(self, tensor: Any) -> int:
        """Where in the file the tensor's bytes begin."""
        data = tensor.tobytes()
        key = hashlib.sha256(data).digest(), len(data)
        if key not in self.places:
            with (self.folder / FILE).open("ab") as file:
                end = file.seek(0, os.SEEK_END)
                file.write(bytes(-end % ALIGNMENT))
                self.places[key] = file.tell()
                file.write(data)
        return self.places[key]
