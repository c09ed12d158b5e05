"""The contract between models and backends. A stage is a named network call on NumPy arrays of declared shapes.

A model declares its stages (``ModelStages``); a backend runs them for any model. Three kinds of call:

* ``Backend.run``: a stateless stage;
* ``Backend.decoder``: an autoregressive network, whose kv-cache the backend keeps;
* ``Backend.denoiser``: a diffusion network bound to utterances, so that their conditioning is computed once.

Arrays are not padded here. A backend with fixed shapes pads them to a bucket, one of the lengths that a package has
functions for, and crops the result.
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

MASKED = -1e4  # added to the attention score of a masked position: its exp() is 0, and no sum overflows fp16


@dataclass(frozen=True)
class TensorSpec:
    """Shape (numbers, or names of dimensions) and dtype of one input or output."""

    shape: tuple[int | str, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class FunctionSet:
    """Fixed-shape functions of one network's package, as a stage with a ``packaged`` call uses them.

    Attributes:
        functions: kind → the functions of that kind, one per bucket; none when the package was converted without it.
        table: key → the parameter with this key in the state dict, float32, for computations in NumPy.
    """

    functions: Callable[[str], Sequence[Any]]
    table: Callable[[str], np.ndarray]


@dataclass(frozen=True)
class Stage:
    """A stateless network call.

    Attributes:
        network: name of the network to call.
        inputs: by name. output: its single output.
        method: method of the PyTorch network to call, with the inputs in their order.
        packaged: How it runs on a package's fixed-shape functions, (functions, stage's name, inputs) → output: a
            declaration of ``ane.backends.fixed_shapes`` (``Rows``, ``Exact``), or a small function of the host where
            these do not fit. ``None`` means that the network is never in a package.
    """

    network: str
    inputs: dict[str, TensorSpec]
    output: TensorSpec
    method: str = "forward"
    packaged: Callable[[FunctionSet, str, dict[str, np.ndarray]], np.ndarray] | None = None


@dataclass(frozen=True)
class DecoderStage:
    """The autoregressive network of a model.

    The PyTorch network is called as ``network(columns, attend)``, where ``attend`` holds a function (q, k, v) → output
    for each layer, and ``network.logits(hidden)``; its config has a ``decoder_shape``. With cross-attention it is
    called as ``network(columns, attend, cross_attend)``, where ``cross_attend`` holds a function q → output for each
    layer, and ``network.memory(states)`` returns keys and values for each layer.

    Attributes:
        tables: embedding tables that are looked up in NumPy: name → key in the state dict.
        tied: names of the tables that the network computes with too.
    """

    network: str
    tables: Mapping[str, str]
    tied: tuple[str, ...] = ()


@dataclass(frozen=True)
class DenoiserStage:
    """The diffusion network of a model.

    The PyTorch network has ``bind``: latents (1, N, D) and number of frames of each utterance, a voice latent (1, C) →
    a function of noisy mels (1, 100, L), the timestep and ``guided``, which returns what ``Denoiser`` does for each.
    An ONNX package has the graphs ``condition`` and ``denoise``.

    Attributes:
        conditioning: (run, table, latents, voice latent, frames) → the graph's input ``code`` (upstream's code_emb) for
            every step, (2, C, L) float32: the conditional row, then the unconditional one. ``run(graph, inputs)``
            runs a graph, ``table(key)`` reads a parameter.
        out_channels: the network's config → channels of its output.
        packaged: (functions, latents, conditioning, frames) → ``Denoiser`` of one utterance on fixed-shape functions.
    """

    network: str
    conditioning: Callable[..., np.ndarray]
    out_channels: Callable[[Any], int]
    packaged: Callable[[FunctionSet, np.ndarray, np.ndarray, int], Denoiser]


@dataclass(frozen=True)
class ModelStages:
    """Everything that a model asks of a backend."""

    calls: Mapping[str, Stage]
    decoder: DecoderStage | None = None
    denoiser: DenoiserStage | None = None

    def decodes(self, network: str) -> bool:
        """Whether this is the autoregressive network."""
        return self.decoder is not None and network == self.decoder.network


class Backend(ABC):
    """Runs the stages of one model. What an engine cannot do, or the model lacks, raises NotImplementedError.

    Attributes:
        max_batched_frames: frames of all utterances together that one call of a denoiser should have at most; 0: one
            utterance per call.
        keep: whether ``release`` leaves networks in memory.
        returns_attention: whether ``align`` and ``prefix_attention`` work.
        keeps_threads: whether all networks keep their number of threads on a machine with other work, so that sound has
            the same bytes.
        any_thread: Whether several threads may call it at a time.
        calls_at_once: Calls that one text may make at a time, on as many threads, for the same bits.
        blocks_python: Whether a call of a network keeps other threads of this process from running Python, as
            coremltools does during a prediction.
    """

    name: str
    max_batched_frames = 0
    keeps_threads = False
    any_thread = False
    calls_at_once = 1
    blocks_python = False
    returns_attention = False
    keep = True

    @abstractmethod
    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        """Run a stateless stage that the model declares."""

    def run_each(self, stage: str, calls: Sequence[dict[str, np.ndarray]]) -> Iterator[np.ndarray]:
        """``run`` with each of these inputs, in order, several at once where that is faster."""
        for inputs in calls:
            yield self.run(stage, **inputs)

    def longest(self, stage: str, length: str) -> int | None:
        """The most that a length of a stage's inputs may be in one call; None: no limit.

        ``length`` is its name in a bucket, such as "frames".
        """
        return None

    def embeddings(self) -> dict[str, np.ndarray]:
        """The decoder's look-up tables, float32, by the names of ``DecoderStage.tables``."""
        raise NotImplementedError

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None) -> Decoder:
        """A decoder with an empty cache: ``capacity`` own positions for each of ``lanes`` lanes.

        It stores up to ``prefixes`` prefixes of at most ``max_prefix_length`` positions each. None, allowed with one
        prefix: of any length, but a prefix longer than all before it may clear the lanes.
        """
        raise NotImplementedError

    def denoiser(self, latents: Sequence[np.ndarray], conditioning: np.ndarray, frames: Sequence[int]) -> Denoiser:
        """Bind the diffusion network to utterances: latents (1, N, D) and a number of frames of each, and one voice
        latent (1, C). Every utterance gets what it would get alone, up to rounding.
        """
        raise NotImplementedError

    def align(
        self, columns: np.ndarray, memory: np.ndarray, heads: Sequence[tuple[int, int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """One pass of a decoder with cross-attention over columns (T, D) that attend to a memory
        (``DecoderShape.memory_length``, D), both float32.

        Returns logits (T, V) of every column, and for each of ``heads``, (layer, head), the scores q·k / √head_width of
        its cross-attention before the softmax, (heads, T, memory_length), both float32.
        """
        raise NotImplementedError

    def prefix_attention(self, columns: np.ndarray, prefix: int, heads: Sequence[tuple[int, int]]) -> np.ndarray:
        """One pass over columns (T, D) float32, each of which attends to itself and to those before it.

        Returns for each of ``heads``, (layer, head), the scores q·k / √head_width before the softmax of the columns
        after the first ``prefix`` for these: (heads, T − prefix, prefix) float32.
        """
        raise NotImplementedError

    @abstractmethod
    def load(self, *networks: str) -> None:
        """Load these networks now, so that their first call is not slowed by loading."""

    @abstractmethod
    def release(self, *networks: str) -> None:
        """Allow the memory of these networks (none named: of all) to be freed; a later call loads them again."""


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
    """A backend that ``make`` makes when it is first asked for something: making torch's takes a second."""

    def __init__(self, make: Callable[[], Backend]):
        self._make = make

    @cached_property
    def fallback(self) -> Backend:  # type: ignore[override]
        """The backend that was made."""
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
    """Compare the inputs of a call with the declared names, ranks, numbered dimensions and dtypes.

    Raises:
        TypeError: wrong names, rank, size or dtype.
        UserError: a value is NaN or infinite.
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
                f"stage {name}: its input {key} has NaN or infinite values; the voice, the weights or the "
                "precision is the cause"
            )
