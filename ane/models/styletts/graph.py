"""A graph of StyleTTS 2's kind on ONNX Runtime's CPU provider: its interface is checked when it is opened."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.onnx.providers import CPU, MEMORY_MESSAGES, make_session, onnxruntime_module
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.models.styletts.bundle import StyleModel

# name → element type, and sizes of the dimensions, None for any. Source: kittentts/onnx_model.py of KittenTTS 0.8.1
INPUTS: dict[str, tuple[str, tuple[int | None, ...]]] = {
    "input_ids": ("tensor(int64)", (1, None)), "style": ("tensor(float)", (1, 256)), "speed": ("tensor(float)", (1,)),
}
TOKENS = "tokens"                           # what older exports of Kokoro call the input_ids
DURATION = "duration"                       # an output of newer exports
CLIPPED = "/encoder/Clip_output_0"          # the same within older ones of Kokoro
METADATA = "kokoro_config"                  # of the graph, with the vocabulary


class StyleGraph:
    """A graph. ``run`` may be called by several threads at once.

    Args:
        title: of the kind of model, and extra, which installs what it needs, for messages.
        threads: cores that one run uses; None: ONNX Runtime's choice, all of them.

    Attributes:
        vocabulary: characters and their ids, if the graph states them.
        published_outputs: names of the outputs that are in the file.

    Raises:
        UserError: onnxruntime is not installed, the file is missing or no ONNX graph, or its interface is another one.
    """

    def __init__(self, path: Path, title: str, extra: str, threads: int | None = None):
        self.path = path
        if not path.is_file():
            raise UserError(f"{path} is missing: download the model again")
        onnxruntime_module(title, f"'tortoise-ane[{extra}]'")
        with _one_line_errors(f"{path} cannot be loaded"):
            self._session = make_session(path, [CPU], threads, spins=False)
            self.published_outputs = self._names()
            if {DURATION, CLIPPED}.isdisjoint(self._names()) and CLIPPED.encode() in path.read_bytes():
                self._session = make_session(with_durations(path), [CPU], threads, spins=False)
        fault = interface_fault(self._session)
        if fault:
            raise UserError(f"{path} is not a {title} graph: {fault}")
        durations = [name for name in (DURATION, CLIPPED) if name in self._names()]
        self._outputs = [self._names()[0], *durations[:1]]
        self._tokens = next(value.name for value in self._session.get_inputs() if value.name in ("input_ids", TOKENS))
        stated = self._session.get_modelmeta().custom_metadata_map.get(METADATA)
        self.vocabulary: dict[str, int] | None = json.loads(stated)["vocab"] if stated else None

    def _names(self) -> list[str]:
        return [value.name for value in self._session.get_outputs()]

    def run(self, input_ids: np.ndarray, style: np.ndarray, speed: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The waveform of one chunk, (S,) float32 at 24 kHz, and the durations of its ids (T,), in equal parts of it.

        Args:
            input_ids: (1, T) int64. style: (1, 256) float32. speed: (1,) float32.

        Returns:
            None in place of the durations where the graph states none.

        Raises:
            UserError: the graph fails, memory runs out, or the output is not one finite waveform.
        """
        with _one_line_errors("the graph fails"):
            wave, *durations = self._session.run(self._outputs, {self._tokens: input_ids, "style": style,
                                                                 "speed": speed})
        if wave.ndim == 0 or wave.size != wave.shape[-1]:
            raise UserError(f"the graph returns {wave.shape} instead of one waveform: {self.path.name} is not for one "
                            "text a run")
        if not np.isfinite(wave).all():
            raise UserError(f"the graph returns NaN or infinite samples: {self.path.name} or its voices are damaged")
        found = durations[0].reshape(-1) if durations else np.zeros(0)
        known = found.size == input_ids.size and (found >= 0).all() and found.sum() > 0
        return wave.reshape(-1), found if known else None


class StyleBackend:
    """Runs the graph of a model, in a session for each number of threads that is asked for."""

    name = "onnx:cpu"

    def __init__(self, model: "StyleModel"):
        self._model = model
        self._graphs: dict[int | None, StyleGraph] = {}

    def graph(self, threads: int | None) -> StyleGraph:
        """The graph whose runs use that many threads, loaded if it is not. Errors: ``StyleGraph``."""
        if threads not in self._graphs:
            self._graphs[threads] = self._model.open_graph(threads)
        return self._graphs[threads]


def with_durations(path: Path) -> bytes:
    """The graph in a file with the durations as a further output: messages in this format join when their bytes do."""
    from onnx import GraphProto, ModelProto, TensorProto, helper

    output = helper.make_tensor_value_info(CLIPPED, TensorProto.FLOAT, None)
    return path.read_bytes() + ModelProto(graph=GraphProto(output=[output])).SerializeToString()


def interface_fault(session: Any) -> str:
    """How the inputs and the first output of a graph differ from ``INPUTS``; "" when they do not."""
    found = {"input_ids" if value.name == TOKENS else value.name: (value.type, value.shape)
             for value in session.get_inputs()}
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
