"""Define the interface between models and backends (the engines that compute networks).

A model declares each of its network calls as a *stage* (see ``ModelStages``). A backend runs the stages of any model on
NumPy arrays. A model makes three kinds of call:

* ``Backend.run`` runs a stage that keeps no state between calls.
* ``Backend.decoder`` opens an autoregressive network. The backend keeps the network's kv-cache.
* ``Backend.denoiser`` binds a diffusion network to utterances, so that it computes their conditioning only once.

A caller never pads arrays. Some backends run converted packages, whose functions have fixed shapes. Such a backend pads
an array to a *bucket*, which is a length for which the package has a function, and crops the output.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ane.backends.decoding import Decoder
from ane.backends.denoising import Denoiser
from ane.system.errors import UserError

MASKED = -1e4  # added to the attention score of a masked position: exp() of the sum is 0, and no sum overflows fp16


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of one input or output. If a dimension varies from call to call, ``shape`` has a name for it."""

    shape: tuple[int | str, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class RowLimit:
    """The longest row (sequence of a batch) that a stage (network call) can compute.

    Attributes:
        most: Largest number of positions that the stage computes in one call. ``None`` means any number.
        divides: Whether callers may pass longer rows, which the stage then divides itself.
        exact: Whether a caller may choose the length of every call freely. The output for a position then has the same
            bits in every call that has all the positions on which this output depends.
    """

    most: int | None = None
    divides: bool = False
    exact: bool = False


@dataclass(frozen=True)
class FunctionSet:
    """The functions in the package of one network, as ``Stage.packaged`` gets them. Each function has fixed shapes.

    Attributes:
        functions: Callable that takes a kind of function and returns the functions of this kind, one per bucket (a
            fixed length). If the package was converted without that kind, the sequence is empty.
        table: Callable that takes a key of the state dict and returns this parameter as float32, for use in NumPy.
    """

    functions: Callable[[str], Sequence[Any]]
    table: Callable[[str], np.ndarray]


@dataclass(frozen=True)
class Stage:
    """A call of a network that keeps nothing from one call to the next.

    Attributes:
        network: Name of the network to call.
        inputs: Shape and dtype of each input, by name.
        output: Shape and dtype of the single output.
        method: Name of the PyTorch network's method to call. It takes the inputs in the order of ``inputs``.
        packaged: Function (``FunctionSet``, stage name, inputs) → output that runs the stage on a package. Use ``Rows``
            or ``Exact`` from ``ane.backends.fixed_shapes`` if either fits. ``None`` means that no package contains the
            network.
        divides: Whether ``packaged`` divides rows that are longer than the longest row for which the package has a
            function.
    """

    network: str
    inputs: dict[str, TensorSpec]
    output: TensorSpec
    method: str = "forward"
    packaged: Callable[[FunctionSet, str, dict[str, np.ndarray]], np.ndarray] | None = None
    divides: bool = False

    @property
    def unit(self) -> str:
        """The unit in which the package's functions count the length of a row, such as "frames"."""
        return getattr(self.packaged, "unit", "frames")


@dataclass(frozen=True)
class DecoderStage:
    """The autoregressive network of a model.

    Backends make two calls to the PyTorch network: ``network(columns, attend)`` and ``network.logits(hidden)``. Here
    ``attend`` has a function for each layer, which computes the attention's output from q, k and v. The network's
    config has a ``decoder_shape``.

    If the network has cross-attention, backends call ``network(columns, attend, cross_attend)`` instead. Here
    ``cross_attend`` has a function for each layer, which computes the cross-attention's output from q.
    ``network.memory(states)`` returns keys and values for each layer.

    Attributes:
        network: Name of the network.
        tables: State dict key of each embedding table, by table name. The host looks up embeddings in these tables with
            NumPy.
        tied: Names of the tables whose weights the network itself also uses.
    """

    network: str
    tables: Mapping[str, str]
    tied: tuple[str, ...] = ()


@dataclass(frozen=True)
class DenoiserStage:
    """The diffusion network of a model.

    The PyTorch network has a method ``bind``. For each utterance, ``bind`` takes latents (1, N, D) and a number of
    frames. It also takes one voice latent (1, C). ``bind`` returns a function that works as ``Denoiser`` does: the
    function takes noisy mels (1, 100, L), the timestep and ``guided``, and returns the outputs. An ONNX package has the
    graphs ``condition`` and ``denoise``.

    Attributes:
        network: Name of the network.
        conditioning: Function (run, table, latents, voice latent, frames) → conditioning (2, C, L) float32. Its first
            row is conditional, and its second row is unconditional. Each denoising step passes the conditioning to the
            graph ``denoise`` as the input ``code`` (``code_emb`` upstream). ``run(graph, inputs)`` runs a graph, and
            ``table(key)`` reads a parameter.
        out_channels: Function that takes the network's config and returns the number of output channels.
        packaged: Function (``FunctionSet``, latents, conditioning, frames) → ``Denoiser`` that runs one utterance on a
            package.
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
        """Return whether ``network`` is the name of the model's autoregressive network."""
        return self.decoder is not None and network == self.decoder.network


class Backend(ABC):
    """Runs the stages (network calls) of one model on an engine such as PyTorch or Core ML.

    A method raises NotImplementedError if the engine cannot do what the method promises, or if the model lacks the
    network that the method runs.

    Attributes:
        name: Name of the backend in reports.
        max_batched_frames: Largest number of mel frames, summed over all utterances, that a denoiser can take in one
            call. 0 means one utterance per call.
        fixed_thread_count: Whether every network always uses the same number of threads, even when other programs keep
            the machine busy. Then the sound always has the same bytes.
        any_thread: Whether several threads may call the backend at the same time.
        calls_at_once: Number of calls that you may make in parallel for one text, each on a separate thread. The
            outputs have the same bits as without other calls.
        blocks_python: Whether no other thread of this process can run Python during a network call. Predictions by
            coremltools block Python in this way.
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
        """Make a network call (a stage) that the model declares in ``ModelStages.calls``, and return its output."""

    def run_all(self, stage: str, calls: Sequence[dict[str, np.ndarray]]) -> Iterator[np.ndarray]:
        """Call ``run`` for the inputs of each call in ``calls``, and yield the outputs in order.

        A backend may make several of these calls in parallel if that is faster.
        """
        for inputs in calls:
            yield self.run(stage, **inputs)

    def row_limit(self, stage: str) -> RowLimit:
        """Return the longest row (sequence of a batch) that a stage (network call) takes.

        ``ane.backends.rows`` and ``ane.backends.windows`` divide longer rows.
        """
        return RowLimit()

    def embeddings(self) -> dict[str, np.ndarray]:
        """Return the decoder's embedding tables as float32, by their names in ``DecoderStage.tables``."""
        raise NotImplementedError

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None) -> Decoder:
        """Create a decoder with an empty cache.

        Args:
            lanes: Number of lanes (sequences that the decoder continues together).
            capacity: Number of positions that each lane can hold after its prefix.
            prefixes: Number of prefixes that the decoder can store. Each lane continues one prefix.
            max_prefix_length: Largest number of positions in a prefix. ``None`` means any length, and is allowed only
                if ``prefixes`` is 1. In this case, a prefix that is longer than all earlier prefixes may clear the
                lanes.
        """
        raise NotImplementedError

    def denoiser(self, latents: Sequence[np.ndarray], conditioning: np.ndarray, frames: Sequence[int]) -> Denoiser:
        """Bind the diffusion network to utterances, which influence each other's outputs only by rounding.

        Args:
            latents: Latents (1, N, D) of each utterance.
            conditioning: Voice latent (1, C).
            frames: Number of mel frames of each utterance.
        """
        raise NotImplementedError

    def align(
        self, columns: np.ndarray, memory: np.ndarray, heads: Sequence[tuple[int, int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run a decoder with cross-attention once over columns (input vectors) that attend to a memory.

        Args:
            columns: Columns (T, D) float32.
            memory: Encoder output to attend to, such as Whisper's states, (``DecoderShape.memory_length``, D) float32.
            heads: Cross-attention heads whose scores to return, as (layer, head) pairs.

        Returns:
            Logits (T, V) of every column, and scores (heads, T, memory_length), both float32. A score is
            q·k / √head_width, before the softmax.
        """
        raise NotImplementedError

    def prefix_attention(self, columns: np.ndarray, prefix: int, heads: Sequence[tuple[int, int]]) -> np.ndarray:
        """Run the decoder once over all columns (inputs), with causal attention. Return the attention to the prefix.

        Args:
            columns: Columns (T, D) float32.
            prefix: Number of columns at the start that form the prefix.
            heads: Heads whose scores to return, as (layer, head) pairs.

        Returns:
            Attention scores (heads, T − prefix, prefix) float32, from each later column to each column of the prefix. A
            score is q·k / √head_width, before the softmax.
        """
        raise NotImplementedError

    @abstractmethod
    def load(self, *networks: str) -> None:
        """Load these networks now, so that their first call does not have to load them."""

    @abstractmethod
    def release(self, *networks: str) -> None:
        """Allow the backend to unload these networks. If you name no network, the backend may unload all networks.

        The next call of a network loads the network again.
        """


def check_inputs(name: str, stage: Stage, inputs: Mapping[str, np.ndarray]) -> None:
    """Check the inputs of a stage (network call) against the names, shapes and dtypes that the stage declares.

    A dimension that has a name in the declared shape may have any size.

    Raises:
        TypeError: An input has another name, rank, size or dtype than the stage declares.
        UserError: An input contains NaN or an infinite value.
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
