"""The ONNX graph on ONNX Runtime's CPU provider: its interface is checked when it is opened."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.onnx.providers import CPU, MEMORY_MESSAGES, onnxruntime_module, quiet_options
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.models.kitten.model_files import KittenModel

# name → element type, and sizes of the dimensions, None for any. Source: kittentts/onnx_model.py of KittenTTS 0.8.1
INPUTS: dict[str, tuple[str, tuple[int | None, ...]]] = {
    "input_ids": ("tensor(int64)", (1, None)), "style": ("tensor(float)", (1, 256)), "speed": ("tensor(float)", (1,)),
}


class KittenSession:
    """A KittenTTS graph. ``run`` may be called by several threads at once.

    Args:
        threads: cores that one run uses; None: ONNX Runtime's choice, all of them.

    Raises:
        UserError: onnxruntime is not installed, the file is missing or no ONNX graph, or its interface is another one.
    """

    def __init__(self, path: Path, threads: int | None = None):
        self.path = path
        if not path.is_file():
            raise UserError(f"{path} is missing: download the model again")
        runtime = onnxruntime_module("KittenTTS", "'tortoise-ane[kitten]'")
        with _one_line_errors(f"{path} cannot be loaded"):
            self._session = runtime.InferenceSession(str(path), quiet_options(threads), providers=[CPU])
        fault = interface_fault(self._session)
        if fault:
            raise UserError(f"{path} is not a KittenTTS graph: {fault}")
        self._output = self._session.get_outputs()[0].name

    def run(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """The waveform of one chunk: (S,) float32 at 24 kHz.

        Inputs: ``input_ids`` (1, T) int64, ``style`` (1, 256) float32, ``speed`` (1,) float32.

        Raises:
            UserError: the graph fails, memory runs out, or the output is not one finite waveform.
        """
        with _one_line_errors("the graph fails"):
            [wave] = self._session.run([self._output], dict(inputs))
        if wave.ndim == 0 or wave.size != wave.shape[-1]:
            raise UserError(f"the graph returns {wave.shape} instead of one waveform: {self.path.name} is not for one "
                            "text a run")
        if not np.isfinite(wave).all():
            raise UserError(f"the graph returns NaN or infinite samples: {self.path.name} or its voices are damaged")
        return wave.reshape(-1)


class KittenBackend:
    """Runs the graph of a model, in a session for each number of threads that is asked for."""

    name = "onnx:cpu"

    def __init__(self, model: "KittenModel"):
        self._graph = model.graph
        self._sessions: dict[int | None, KittenSession] = {}

    def session(self, threads: int | None) -> KittenSession:
        """The session whose runs use that many threads, loaded if it is not. Errors: ``KittenSession``."""
        if threads not in self._sessions:
            self._sessions[threads] = KittenSession(self._graph, threads)
        return self._sessions[threads]


def interface_fault(session: Any) -> str:
    """How the inputs and the first output of a graph differ from KittenTTS's; "" when they do not."""
    found = {value.name: (value.type, value.shape) for value in session.get_inputs()}
    if set(found) != set(INPUTS):
        return f"its inputs are {', '.join(sorted(found)) or 'none'}, not {', '.join(INPUTS)}"
    for name, (kind, shape) in INPUTS.items():
        type_found, shape_found = found[name]
        fits = len(shape) == len(shape_found) and all(
            want is None or got == want or not isinstance(got, int)
            for want, got in zip(shape, shape_found, strict=True))
        if type_found != kind or not fits:
            sizes = ", ".join(str(size) if isinstance(size, int) else "any" for size in shape_found)
            return f"its input {name} is {type_found} ({sizes})"
    output = session.get_outputs()[0]
    return "" if output.type == "tensor(float)" else f"its first output {output.name} is {output.type}"


@contextmanager
def _one_line_errors(action: str) -> Iterator[None]:
    """Convert ONNX Runtime's errors to UserError: "``action``: reason"."""
    try:
        yield
    except MemoryError as error:
        raise UserError(f"{action}: no memory left; use fewer workers or shorter sentences") from error
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        text = str(error)
        if any(part in text for part in MEMORY_MESSAGES):
            raise UserError(f"{action}: no memory left; use fewer workers or shorter sentences") from error
        line = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
        raise UserError(f"{action}: {line[:300]}") from error
