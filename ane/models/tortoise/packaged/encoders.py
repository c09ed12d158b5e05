"""Voice latents on fixed-shape functions, of a reference clip or of noise. The rows of a batch are run one by one."""

from collections.abc import Sequence

import numpy as np

from ane.backends.base import FunctionSet
from ane.backends.packaged.functions import PackageFunction
from ane.system.errors import UserError


def clip_latents(functions: Sequence[PackageFunction], mel: np.ndarray) -> np.ndarray:
    """The stages ar_conditioning and diffusion_conditioning: mel (B, M, L) → (B, width) float32.

    Raises:
        UserError: no function takes clips of exactly this length; padding would change the latent.
    """
    length = mel.shape[-1]
    function = next((f for f in functions if f.bucket["frames"] == length), None)
    if function is None:
        lengths = " or ".join(str(f.bucket["frames"]) for f in functions)
        raise UserError(f"a clip of {length} mel frames: {functions[0].package.stem} takes exactly {lengths} frames; "
                        "convert the model again")
    return np.concatenate([function(mel=row[None, :, None])["latent"][:, :, 0, 0] for row in mel])


def random_latents(functions: Sequence[PackageFunction], noise: np.ndarray) -> np.ndarray:
    """The stages ar_random and diffusion_random: noise (B, width) → (B, width) float32."""
    function, = functions
    return np.concatenate([function(noise=row[None, :, None, None])["latent"][:, :, 0, 0] for row in noise])


def run_clip_encoder(package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    return clip_latents(package.functions(stage), **inputs)


def run_random_converter(package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    return random_latents(package.functions(stage), **inputs)
