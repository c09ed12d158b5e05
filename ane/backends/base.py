"""The contract between the steps of synthesis and the engines: every network call, by name.

A *stage* takes and gives NumPy arrays. A backend fulfils the stages of this file and knows nothing of speech; a
step calls stages and knows nothing of engines. Arrays have their true length here: an engine with fixed shapes
pads to its bucket and crops again behind this seam.

Dimension names: B batch, T text tokens, S codes, N latents, L mel frames, D width of the decoder, C width of the
diffusion decoder's voice latent (2 × its channels), E width of CLVP, V codes of the vocabulary, Z
channels of UnivNet's noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import numpy as np

from ane.system.errors import UserError


@dataclass(frozen=True)
class Tensor:
    """Shape (numbers, or names of dimensions) and dtype of one input or output."""

    shape: tuple[int | str, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Stage:
    """One stateless network call: the network that serves it, its inputs by name and its single output."""

    network: str
    inputs: dict[str, Tensor]
    output: Tensor


STAGES = {
    # reference audio to latents, one clip a row
    "ar_conditioning": Stage("conditioning_encoder", {"mel": Tensor(("B", 80, "L"))}, Tensor(("B", "D"))),
    "diffusion_conditioning": Stage("contextual_embedder", {"mel": Tensor(("B", 100, "L"))}, Tensor(("B", "C"))),
    "ar_random": Stage("rlg_auto", {"noise": Tensor(("B", "D"))}, Tensor(("B", "D"))),
    "diffusion_random": Stage("rlg_diffuser", {"noise": Tensor(("B", "C"))}, Tensor(("B", "C"))),
    # ranking: a score is the dot product of a text (or clip) row and a speech row
    "clvp_text": Stage("clvp", {"tokens": Tensor(("B", "T"), "int64")}, Tensor(("B", "E"))),
    "clvp_speech": Stage("clvp", {"codes": Tensor(("B", "S"), "int64")}, Tensor(("B", "E"))),
    "cvvp_clip": Stage("cvvp", {"mel": Tensor(("B", 80, "L"))}, Tensor(("B", "E"))),
    "cvvp_speech": Stage("cvvp", {"codes": Tensor(("B", "S"), "int64")}, Tensor(("B", "E"))),
    # sound; frames are latents at the rate of mel frames (ane.models.tortoise.vocoding)
    "univnet": Stage("univnet", {"mel": Tensor(("B", 100, "L")), "noise": Tensor(("B", "Z", "L+10"))},
                     Tensor(("B", 1, "256L"))),
    "hifigan": Stage("hifigan", {"frames": Tensor(("B", "D", "L")), "conditioning": Tensor(("B", "D"))},
                     Tensor(("B", 1, "256L"))),
    "classifier": Stage("classifier", {"audio": Tensor(("B", 1, "samples"))}, Tensor(("B", 2))),
}


class Decoder(Protocol):
    """The autoregressive network over a few prefixes and a number of lanes, its kv-cache kept by the engine.

    The caller owns the positions: a lane is rewound, reset or refilled by the ``length`` it passes, and moved to
    another prefix by the ``prefix`` it passes, nothing else.
    """

    lanes: int
    capacity: int
    prefixes: int

    def prefill(self, prefix: np.ndarray, place: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Store a prefix at one of the ``prefixes`` places, over what lay there; lanes of other places go on.

        (P, D) float32 → hidden (D,), logits (V,) of its last position.
        """

    def step(self, columns: np.ndarray, length: np.ndarray, first: int = 0,
             prefix: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Append ``columns`` (n, T, D) float32 to the lanes ``first`` … ``first + n − 1``, T to each.

        ``length`` (n,) int64 says how many own positions each of these lanes holds, ``prefix`` (n,) int64 the place
        of the prefix that each sees (None: all see place 0). Column t of a lane stands at its own position
        length + t and sees its prefix, the lane's positions before it, and itself.
        Returns hidden (n, T, D) and logits (n, V) of the last column, both float32.
        """


class Denoiser(Protocol):
    """The diffusion decoder bound to one utterance: what does not depend on the timestep is computed once."""

    def __call__(self, x: np.ndarray, timestep: int, guided: bool) -> np.ndarray:
        """x (1, 100, L) float32 at the original timestep → (1, 200, L); guided: (2, 200, L), conditional then not."""


@dataclass(frozen=True)
class Step:
    """The numbers of one denoising step: float32, save the original timestep. The rest of its arithmetic knows no
    sampler (``ane.models.tortoise.diffusion.take``):

        said     = conditional·output + unconditional·output without conditioning
        x0       = clip(x0_of_x·x + x0_of_said·said, −1, 1)
        next x   = next_of_x·x + next_of_x0·x0 + next_of_before·(x0 of the step before) + σ·(a standard normal)
        σ        = noise·exp(spread·v), v the second half of the output
    """

    timestep: int
    conditional: float
    unconditional: float
    x0_of_x: float
    x0_of_said: float
    next_of_x: float
    next_of_x0: float
    next_of_before: float = 0.0
    noise: float = 0.0
    spread: float = 0.0

    def __post_init__(self):
        for field in fields(self)[1:]:
            object.__setattr__(self, field.name, np.float32(getattr(self, field.name)))

    @property
    def guided(self) -> bool:
        return bool(self.unconditional)

    @property
    def coefficients(self) -> np.ndarray:
        """All but the timestep, in their order: (9,) float32."""
        return np.array([getattr(self, field.name) for field in fields(self)[1:]], np.float32)


@runtime_checkable
class FusedDenoiser(Denoiser, Protocol):
    """A denoiser that can also take several steps in one call."""

    def steps(self, guided: bool) -> Sequence[int]:
        """How many, each number at least 2; none: only one by one."""

    def advance(self, x: np.ndarray, before: np.ndarray, plan: Sequence[Step],
                noise: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take as many steps as ``plan`` has, one of the numbers ``steps``.

        x, and the x0 of the step before (zeros at first): (1, 100, L) float32; a noise for each step (n, 100, L).
        Returns the next x, the last x0, and the network's last output as ``__call__`` gives it.
        """


class BatchedDenoiser(Protocol):
    """The diffusion decoder bound to several utterances, each of its own length."""

    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        """What ``Denoiser`` gives, for every utterance: x (1, 100, L) float32 each, all at this timestep."""


class Backend(Protocol):
    """An engine: runs stages on the networks of one model."""

    name: str

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        """Run a stateless stage of ``STAGES``."""

    def embeddings(self) -> dict[str, np.ndarray]:
        """Look-up tables of the decoder, float32: text (.., D), text_position, code, code_position."""

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, longest: int | None = None) -> Decoder:
        """A decoder with an empty cache: ``capacity`` own positions for each of ``lanes`` lanes.

        ``prefixes`` places for prefixes, none of more than ``longest`` positions. None, of one place: of any length,
        and a longer prefix than those before it may begin the lanes anew.
        """

    def denoiser(self, latents: np.ndarray, conditioning: np.ndarray, frames: int) -> Denoiser:
        """Bind the diffusion decoder to latents (1, N, D), a voice latent (1, C), both float32, and L frames."""

    def load(self, *networks: str) -> None:
        """Make these networks ready, so that their first call is no slower than the others."""

    def release(self, *networks: str) -> None:
        """Say that these networks' step is over (no name: all of them), so that their memory may be freed."""


@runtime_checkable
class BatchingBackend(Backend, Protocol):
    """A backend that can also denoise several utterances in one call.

    Attributes:
        frames_at_once: how many frames, of all utterances together, are worth a call; 0: one utterance at a time.
    """

    frames_at_once: int

    def denoisers(self, latents: Sequence[np.ndarray], conditioning: np.ndarray,
                  frames: Sequence[int]) -> BatchedDenoiser:
        """Bind the diffusion decoder to latents (1, N, D) and a number of frames for each utterance, and to one voice
        latent (1, C). Every utterance gets what it would get alone, up to rounding."""


def check(stage: str, inputs: dict[str, np.ndarray]) -> None:
    """Hold the inputs of a call to the contract: names, ranks, numbered dimensions and dtypes.

    Raises:
        KeyError: no such stage. TypeError: wrong names, rank, size or dtype. UserError: a value is NaN or infinite.
    """
    declared = STAGES[stage].inputs
    if set(inputs) != set(declared):
        raise TypeError(f"stage {stage} takes {sorted(declared)}, got {sorted(inputs)}")
    for name, tensor in declared.items():
        array = inputs[name]
        fits = len(array.shape) == len(tensor.shape) and all(
            isinstance(want, str) or want == got for want, got in zip(tensor.shape, array.shape, strict=True))
        if not fits or array.dtype != tensor.dtype:
            raise TypeError(f"stage {stage}, input {name}: want {tensor.dtype} {tensor.shape}, "
                            f"got {array.dtype} {array.shape}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UserError(f"stage {stage}: its input {name} holds NaN or infinite values; "
                            "the voice, the weights or the precision is at fault")
