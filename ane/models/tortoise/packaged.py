"""Run Tortoise's stages on packages, whose functions have fixed shapes: pad inputs, crop outputs, embed tokens."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ane.backends.base import FunctionSet
from ane.backends.denoising import Denoiser
from ane.backends.fixed_shapes import FixedFunction, pad_last_axis, sequence_masks, smallest_fitting
from ane.models.tortoise.networks.diffusion_decoder import timestep_embedding
from ane.models.tortoise.networks.univnet import SILENCE, SILENT_FRAMES
from ane.models.vocoders.segments import sound_of_windows, zero_padded
from ane.system.errors import UserError

INPUT = "the text"  # subject of the message that an input is too long for every function


class PackagedDenoiser(Denoiser):
    """Denoises one utterance with functions that ``converters.tortoise.diffusion_decoder`` made.

    Each function takes inputs of one fixed length. The denoiser uses the smallest function into which the utterance
    fits. Inputs that are equal in all denoising steps are padded only once.
    """

    def __init__(
        self,
        condition: Sequence[FixedFunction],
        denoise: Sequence[FixedFunction],
        unconditioned: np.ndarray,
        latents: np.ndarray,
        conditioning: np.ndarray,
        length: int,
    ):
        """Compute the conditioning of the utterance.

        Args:
            condition: Functions of the kind "condition". They compute the conditioning from the latents.
            denoise: Functions of the kind "denoise". They compute a denoising step.
            unconditioned: Embedding that replaces the conditioning in the unconditional row of guidance, (1, C, 1).
            latents: Latents of the utterance, (1, N, D) float32.
            conditioning: Diffusion latent of the voice, (1, 2C) float32.
            length: Number of mel frames.

        Raises:
            UserError: The utterance is too long for every function.
        """
        self.length = length
        self._denoise = denoise
        self._width = unconditioned.shape[1]
        count = latents.shape[1]
        function = smallest_fitting(condition, INPUT, latents=count)
        bucket = function.bucket["latents"]
        code = function(
            latents=pad_last_axis(latents.swapaxes(1, 2)[:, :, None], bucket),
            voice=conditioning[:, :, None, None],
            **sequence_masks(count, bucket),
        )["code"]
        conditional = upsample_nearest(code[..., :count], length)  # (1, C, 1, L)
        unconditional = np.repeat(unconditioned[:, :, None].astype(np.float32), length, axis=-1)
        self._rows = np.concatenate((conditional, unconditional))  # (2, C, 1, L)
        self._prepared: dict[tuple[int, int], dict[str, np.ndarray]] = {}
        smallest_fitting(denoise, INPUT, batch=1, frames=length)  # if no bucket fits, raise before the long computation

    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        [mel] = x
        function = smallest_fitting(self._denoise, INPUT, batch=1 + guided, frames=self.length)
        time = timestep_embedding(torch.tensor([timestep]), self._width).numpy()[:, :, None, None]  # (1, C, 1, 1)
        outputs = function(
            x=pad_last_axis(mel[:, :, None], function.bucket["frames"]), time=time, **self._constant_inputs(function)
        )
        return [outputs["prediction"][: 1 + guided, :, 0, : self.length]]

    def _constant_inputs(self, function: FixedFunction) -> dict[str, np.ndarray]:
        """Pad the inputs that are the same in every denoising step.

        The method caches them for each length of function.
        """
        key = batch, bucket = function.bucket["batch"], function.bucket["frames"]
        if key not in self._prepared:
            self._prepared[key] = {
                "code": pad_last_axis(self._rows[:batch], bucket),
                **sequence_masks(self.length, bucket),
            }
        return self._prepared[key]


def bind_denoiser(package: FunctionSet, latents: np.ndarray, conditioning: np.ndarray, frames: int) -> PackagedDenoiser:
    """Create a denoiser for an utterance from a package. Backends call this as ``DenoiserStage.packaged``."""
    kinds = (package.functions(kind) for kind in ("condition", "denoise"))
    return PackagedDenoiser(*kinds, package.table("unconditioned_embedding"), latents, conditioning, frames)


def denoiser_conditioning(
    run: Callable[[str, dict[str, np.ndarray]], np.ndarray],
    table: Callable[[str], np.ndarray],
    latents: np.ndarray,
    conditioning: np.ndarray,
    frames: int,
) -> np.ndarray:
    """Compute the denoising graph's input ``code``. Backends call this as ``DenoiserStage.conditioning``."""
    code = run("condition", {"latents": latents, "voice": conditioning})
    unconditioned = np.repeat(table("unconditioned_embedding"), frames, axis=-1)
    return np.concatenate((upsample_nearest(code, frames), unconditioned))


def upsample_nearest(code: np.ndarray, length: int) -> np.ndarray:
    """Resize the last axis to ``length`` with the float32 arithmetic of torch's interpolate(mode="nearest")."""
    count = code.shape[-1]
    source = np.arange(length, dtype=np.float32) * (np.float32(count) / np.float32(length))
    return code[..., np.minimum(source.astype(np.int64), count - 1)]


def clvp_vectors(
    functions: Sequence[FixedFunction], table: np.ndarray, factor: float, what: str, ids: np.ndarray
) -> np.ndarray:
    """Encode ids (B, T) int64 to vectors (B, E) float32 with CLVP's text or speech encoder, in one call per row of ids.

    Args:
        functions: Functions of the kind "clvp_text" or "clvp_speech".
        table: Embeddings, (ids, width) float32.
        factor: Length of the vectors: exp(temperature) for text, 1 for speech.
        what: Name of the input in messages, "the text" or "the speech".
        ids: Text tokens or codes.

    Raises:
        UserError: A row is too long for every function of the package, or an id has no embedding.
    """
    if ids.size and not 0 <= ids.min() <= ids.max() < len(table):
        raise UserError(
            f"{what} has the id {ids.max() if ids.min() >= 0 else ids.min()}, but CLVP has embeddings only for "
            f"ids from 0 to {len(table) - 1}"
        )
    vectors = []
    for row in ids:
        function = smallest_fitting(functions, what, positions=len(row))
        positions = function.bucket["positions"]
        x = pad_last_axis(table[row].T[None, :, None], positions)
        latent = function(x=x, **sequence_masks(len(row), positions))["latent"].reshape(-1)
        vectors.append(latent / max(np.linalg.norm(latent), np.float32(1e-12)) * np.float32(factor))
    return np.stack(vectors)


def run_clvp(package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Run the stage clvp_text or clvp_speech on a package. Backends call this as ``Stage.packaged``."""
    [ids] = inputs.values()
    side = stage.removeprefix("clvp_")
    factor = float(np.exp(package.table("temperature"))) if side == "text" else 1.0
    return clvp_vectors(package.functions(stage), package.table(f"{side}_emb.weight"), factor, f"the {side}", ids)


MIRRORED = 3  # noise frames that UnivNet's first convolution adds at either end, as a mirror image


def univnet_sounds(functions: Sequence[FixedFunction], mel: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Make sound (B, 1, 256·L) from mels (B, 100, L) and noise (B, Z, L + 10) with UnivNet. All are float32."""
    stop, length = mel.shape[2], mel.shape[2] + SILENT_FRAMES
    mel = np.pad(mel, ((0, 0), (0, 0), (0, SILENT_FRAMES)), constant_values=SILENCE)
    noise = np.pad(noise[:, :, :length], ((0, 0), (0, 0), (MIRRORED, MIRRORED)), mode="reflect")
    return np.stack(
        [
            sound_of_windows(
                functions,
                stop,
                length,
                lambda begin, width, row=row: {
                    "mel": zero_padded(mel[row], begin, width),
                    "noise": zero_padded(noise[row], begin + MIRRORED, width),
                },
            )[None]
            for row in range(len(mel))
        ]
    )
