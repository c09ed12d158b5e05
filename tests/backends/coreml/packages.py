"""Make small Core ML packages for tests."""

from pathlib import Path

import numpy as np
from coremltools.converters.mil import Builder as mb  # noqa: N813  its name everywhere

from converters.coreml.graph import CoreMLGraph, Style
from converters.coreml.merge import merge

X = np.array([[1, 2, 3, 4]], np.float32)


def save_scale_package(path: Path, factor: float = 2.0, dtype: str = "fp16") -> Path:
    """Save a package of one function: y = factor · x, and the sum of all x so far in a state."""

    def body(style, x, total):
        total_now = mb.add(x=mb.cast(x=x, dtype="fp16"), y=mb.read_state(input=total))
        return {"y": mb.mul(x=x, y=style.dtype(factor)), "sum": mb.coreml_update_state(state=total, value=total_now)}

    graph = CoreMLGraph("scale", {"length": 4}, {"x": (1, 4)}, body, {"total": (1, 4)})
    graph.build(Style(dtype), path)
    return path


def save_two_functions(path: Path) -> Path:
    """Save a package of the functions "double" and "triple" by the project's own merge; both sum x in a state."""
    parts = {
        name: save_scale_package(path.with_name(f"{name}.mlpackage"), factor)
        for name, factor in (("double", 2.0), ("triple", 3.0))
    }
    merge(parts.items(), path)
    return path
