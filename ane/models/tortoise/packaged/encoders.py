"""Stages that make latents: of a reference clip, or of noise. Rows of a batch go one at a time."""

from collections.abc import Sequence

import numpy as np

from ane.backends.packaged.functions import Function
from ane.system.errors import UserError


def clip_latents(functions: Sequence[Function], mel: np.ndarray) -> np.ndarray:
    """The stages ar_conditioning and diffusion_conditioning: mel (B, M, L) → (B, width) float32.

    Raises:
        UserError: no function takes clips of just this length; padding would be heard.
    """
    length = mel.shape[-1]
    function = next((f for f in functions if f.bucket["frames"] == length), None)
    if function is None:
        taken = " or ".join(str(f.bucket["frames"]) for f in functions)
        raise UserError(f"a clip of {length} mel frames: {functions[0].package.stem} takes {taken} frames, no more and "
                        "no less; convert the model again")
    return np.concatenate([function(mel=row[None, :, None])["latent"][:, :, 0, 0] for row in mel])


def random_latents(functions: Sequence[Function], noise: np.ndarray) -> np.ndarray:
    """The stages ar_random and diffusion_random: noise (B, width) → (B, width) float32."""
    function, = functions
    return np.concatenate([function(noise=row[None, :, None, None])["latent"][:, :, 0, 0] for row in noise])


ar_conditioning = diffusion_conditioning = clip_latents
ar_random = diffusion_random = random_latents
