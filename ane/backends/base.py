"""Define the contract between models and backends.

A model declares its network calls as stages (``ModelStages``). A backend runs them on NumPy arrays, for any model.
There are three kinds of call:

* ``Backend.run`` runs a stateless stage.
* ``Backend.decoder`` opens an autoregressive network, whose kv-cache the backend keeps.
* ``Backend.denoiser`` binds a diffusion network to utterances, so that their conditioning is computed once.

Callers do not pad arrays. A backend with fixed shapes pads them to a bucket, which is one of the lengths that the
package has functions for, and crops the result.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ane.backends.decoding import Decoder
from ane.backends.denoising import Denoiser
from ane.system.errors import UserError

MASKED = -1e4  # is added to the attention score of a masked position: its exp() is 0, and no sum overflows fp16


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of one input or output. A dimension of the shape is a number, or a name if its size varies."""

    shape: tuple[int | str, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class RowLimit:
    """How long a row one call of a stage takes.

    Attributes:
        most: The most positions, or ``None`` for any number.
        divides: Whether a call takes longer rows, too, and divides them itself.
    """

    most: int | None = None
    divides: bool = False


@dataclass(frozen=True)
class FunctionSet:
    """The fixed-shape functions of one network's package, for the ``packaged`` call of a stage.

    Attributes:
        functions: Returns the functions of a kind, one per bucket, or an empty sequence if the package was converted
            without that kind.
        table: Returns the parameter with a key of the state dict, float32, for computations in NumPy.
    """

    functions: Callable[[str], Sequence[Any]]
    table: Callable[[str], np.ndarray]


@dataclass(frozen=True)
class Stage:
    """A stateless network call.

    Attributes:
        network: Name of the network to call.
        inputs: Shape and dtype of each input, by name.
        output: Shape and dtype of the single output.
        method: Method of the PyTorch network to call. It takes the inputs in the order of ``inputs``.
        packaged: Function (functions, stage name, inputs) → output that runs the stage on the fixed-shape functions of
            a package. It is a ``Rows`` or ``Exact`` of ``ane.backends.fixed_shapes``, or a small function if neither
            fits. ``None`` means that packages never contain the network.
        divides: Whether ``packaged`` divides rows that are longer than the largest bucket.
    """

    network: str
    inputs: dict[str, TensorSpec]
    output: TensorSpec
    method: str = "forward"
    packaged: Callable[[FunctionSet, str, dict[str, np.ndarray]], np.ndarray] | None = None
    divides: bool = False

    @property
    def unit(self) -> str:
        """The name in a bucket for the length of a row."""
        return getattr(self.packaged, "unit", "frames")


@dataclass(frozen=True)
class DecoderStage:
    """The autoregressive network of a model.

    Backends call the PyTorch network as ``network(columns, attend)``, where ``attend`` holds a function (q, k, v) →
    output for each layer, and as ``network.logits(hidden)``. The network's config has a ``decoder_shape``.

    A network with cross-attention is called as ``network(columns, attend, cross_attend)``, where ``cross_attend`` holds
    a function q → output for each layer. Its ``network.memory(states)`` returns keys and values for each layer.

    Attributes:
        network: Name of the network.
        tables: Keys in the state dict of the embedding tables that the host looks up with NumPy, by table name.
        tied: Names of the tables that the network also computes with.
    """

    network: str
    tables: Mapping[str, str]
    tied: tuple[str, ...] = ()


@dataclass(frozen=True)
class DenoiserStage:
    """The diffusion network of a model.

    The PyTorch network has a method ``bind``. It takes latents (1, N, D) and a number of frames for each utterance, and
    a voice latent (1, C). It returns a function that takes noisy mels (1, 100, L), the timestep and ``guided``, and
    returns outputs as ``Denoiser`` does. An ONNX package has the graphs ``condition`` and ``denoise``.

    Attributes:
        network: Name of the network.
        conditioning: Function (run, table, latents, voice latent, frames) → (2, C, L) float32, the conditional row,
            then the unconditional one. Each step passes it to the graph as the input ``code`` (``code_emb`` upstream).
            ``run(graph, inputs)`` runs a graph, and ``table(key)`` reads a parameter.
        out_channels: Function that takes the network's config and returns the number of output channels.
        packaged: Function (functions, latents, conditioning, frames) → ``Denoiser`` that runs one utterance on
            fixed-shape functions.
    """

    network: str
    conditioning: Callable[..., np.ndarray]
    out_channels: Callable[[Any], int]
    packaged: Callable[[FunctionSet, np.ndarray, np.ndarray, int], Denoiser]


@dataclass(frozen=True)
class ModelStages:
    """The network calls that a model needs from a backend."""

    calls: Mapping[str, Stage]
    decoder: DecoderStage | None = None
    denoiser: DenoiserStage | None = None

    def decodes(self, network: str) -> bool:
        """Return whether this is the autoregressive network."""
        return self.decoder is not None and network == self.decoder.network


class Backend(ABC):
    """A backend runs the stages of one model.

    A method raises NotImplementedError if the engine cannot do it, or if the model has no such network.

    Attributes:
        name: Name of the backend in reports.
        max_batched_frames: Largest number of frames, summed over all utterances, for one call of a denoiser. 0 means
            one utterance per call.
        fixed_thread_count: Whether every network uses the same number of threads even when other programs keep the
            machine busy, so that the sound has the same bytes.
        any_thread: Whether several threads may call the backend at once.
        calls_at_once: Number of calls that one text may make at once, each on its own thread, without changing a bit of
            the results.
        blocks_python: Whether a network call stops the other threads of this process from running Python, as
            coremltools does during a prediction.
        returns_attention: Whether ``align`` and ``prefix_attention`` work.
        keep: Whether ``release`` leaves networks in memory.
    """

    name: str
    max_batched_frames = 0
    fixed_thread_count = False
    any_thread = False
    calls_at_once = 1
    blocks_python = False
    returns_attention = False
    keep = True

    @abstractmethod
    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        """Run a stateless stage that the model declares."""

    def run_all(self, stage: str, calls: Sequence[dict[str, np.ndarray]]) -> Iterator[np.ndarray]:
        """Call ``run`` for all of these inputs, and yield the outputs in order.

        A backend may run several calls at once if that is faster.
        """
        for inputs in calls:
            yield self.run(stage, **inputs)

    def row_limit(self, stage: str) -> RowLimit:
        """Return how long a row one call of a stage takes. Models use ``ane.backends.rows`` and ``windows``."""
        return RowLimit()

    def embeddings(self) -> dict[str, np.ndarray]:
        """Return the decoder's look-up tables, float32, by their names in ``DecoderStage.tables``."""
        raise NotImplementedError

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None) -> Decoder:
        """Create a decoder with an empty cache.

        Args:
            lanes: Number of lanes.
            capacity: Number of positions for each lane, after its prefix.
            prefixes: Number of prefixes that the decoder can store.
            max_prefix_length: Largest number of positions in a prefix. ``None`` means any length and is allowed with
                one prefix only. Then a prefix that is longer than all before it may clear the lanes.
        """
        raise NotImplementedError

    def denoiser(self, latents: Sequence[np.ndarray], conditioning: np.ndarray, frames: Sequence[int]) -> Denoiser:
        """Bind the diffusion network to utterances. Each one gets the result it would get alone, up to rounding.

        Args:
            latents: Latents (1, N, D) of each utterance.
            conditioning: Voice latent (1, C).
            frames: Number of mel frames of each utterance.
        """
        raise NotImplementedError

    def align(
        self, columns: np.ndarray, memory: np.ndarray, heads: Sequence[tuple[int, int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run a decoder with cross-attention once over columns that attend to a memory, such as Whisper's audio.

        Args:
            columns: Columns (T, D) float32.
            memory: Memory (``DecoderShape.memory_length``, D) float32.
            heads: Cross-attention heads to return scores for, as (layer, head) pairs.

        Returns:
            Logits (T, V) of every column, and scores (heads, T, memory_length), both float32. A score is
            q·k / √head_width, before the softmax.
        """
        raise NotImplementedError

    def prefix_attention(self, columns: np.ndarray, prefix: int, heads: Sequence[tuple[int, int]]) -> np.ndarray:
        """Run the decoder once over columns (T, D) float32, with causal attention.

        Returns:
            Attention scores (heads, T − prefix, prefix) float32 from the columns after the first ``prefix`` to these
            first ones, for each (layer, head) pair of ``heads``. A score is q·k / √head_width, before the softmax.
        """
        raise NotImplementedError

    @abstractmethod
    def load(self, *networks: str) -> None:
        """Load these networks now, so that their first call does not have to."""

    @abstractmethod
    def release(self, *networks: str) -> None:
        """Allow freeing the memory of these networks, or of all if none is named. The next call reloads them."""


class ForwardingBackend(Backend):
    """A backend that passes calls on to ``fallback``. Subclasses override the calls that they compute themselves."""

    fallback: Backend

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        return self.fallback.run(stage, **inputs)

    def embeddings(self) -> dict[str, np.ndarray]:
        return self.fallback.embeddings()

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None) -> Decoder:
        return self.fallback.decoder(lanes, capacity, prefixes, max_prefix_length)

    def denoiser(self, latents: Sequence[np.ndarray], conditioning: np.ndarray, frames: Sequence[int]) -> Denoiser:
        return self.fallback.denoiser(latents, conditioning, frames)

    def align(
        self, columns: np.ndarray, memory: np.ndarray, heads: Sequence[tuple[int, int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        return self.fallback.align(columns, memory, heads)

    def prefix_attention(self, columns: np.ndarray, prefix: int, heads: Sequence[tuple[int, int]]) -> np.ndarray:
        return self.fallback.prefix_attention(columns, prefix, heads)


class DeferredBackend(ForwardingBackend):
    """A backend that ``make`` creates on first use, because creating the PyTorch backend takes a second."""

    def __init__(self, make: Callable[[], Backend]):
        self._make = make

    @cached_property
    def fallback(self) -> Backend:  # type: ignore[override]
        """Return the backend, which the first access creates."""
        return self._make()

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.fallback.name

    def load(self, *networks: str) -> None:
        if networks:
            self.fallback.load(*networks)

    def release(self, *networks: str) -> None:
        if "fallback" in self.__dict__:
            self.fallback.release(*networks)


def check_inputs(name: str, stage: Stage, inputs: Mapping[str, np.ndarray]) -> None:
    """Check the inputs of a call against the names, ranks, numbered dimensions and dtypes that the stage declares.

    Raises:
        TypeError: A name, rank, size or dtype differs.
        UserError: A value is NaN or infinite.
    """
    if set(inputs) != set(stage.inputs):
        raise TypeError(f"stage {name} takes {sorted(stage.inputs)}, got {sorted(inputs)}")
    for key, spec in stage.inputs.items():
        array = inputs[key]
        fits = len(array.shape) == len(spec.shape) and all(
            isinstance(want, str) or want == got for want, got in zip(spec.shape, array.shape, strict=True)
        )
        if not fits or array.dtype != spec.dtype:
            raise TypeError(
                f"stage {name}, input {key}: expected {spec.dtype} {spec.shape}, got {array.dtype} {array.shape}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UserError(
                f"stage {name}: its input {key} has NaN or infinite values: try another voice, bundle or precision"
            )
