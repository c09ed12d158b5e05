"""Define the rows of test_conformance.py: models, sizes, outliers, and the dB that every network must reach."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from ane.backends.mil import Arithmetic
from ane.bundles import Bundle, open_model
from ane.bundles.weights import layout
from ane.bundles.writing import write_bundle
from ane.models.tortoise import networks
from ane.models.tortoise.networks.clvp import CLVPConfig
from ane.models.tortoise.networks.diffusion_decoder import DiffusionConfig
from ane.models.vocoders.bigvgan import BigVGANConfig
from converters.coreml.coreml_package import CoreMLOptions
from converters.tortoise import conditioning
from tests import random_model
from tests.fastspeech_files import fastspeech_bundle
from tests.imported import imported
from tests.models.whisper.random_whisper import RandomSizes, write_hugging_face

EXACT, ROUNDED, NARROW, CORE_AI = "fp32", "fp16 rounded", "fp16 narrow norms", "fp32 on Core AI"
# precision → the kinds of arithmetic in the interpreter, as columns of FLOORS
ARITHMETICS = {
    "fp32": {EXACT: Arithmetic()},
    "fp16": {ROUNDED: Arithmetic(fp16=True), NARROW: Arithmetic(fp16=True, narrow_norms=True)},
}


@dataclass(frozen=True)
class Floors:
    """The dB of any output, in fp32, in fp32 on Core AI, in fp16 with every result rounded, and with narrow norms."""

    exact: float = 100
    core_ai: float = 90
    rounded: float = 55
    narrow: float = 55

    def of(self, column: str) -> float:
        return {EXACT: self.exact, CORE_AI: self.core_ai, ROUNDED: self.rounded, NARROW: self.narrow}[column]


# The keys are "model, network", "network, kind of function", or a network. A state is always fp16. A floor that is not
# a round number is 3 dB below a measurement with the random weights.
FLOORS = {
    "autoregressive": Floors(rounded=52.9, narrow=51.8),
    "autoregressive, state": Floors(exact=70, core_ai=60, rounded=52.9, narrow=51.8),
    "autoregressive, store": Floors(exact=70, core_ai=60, rounded=52.9, narrow=51.8),
    "conditioning_encoder": Floors(),
    "contextual_embedder": Floors(),
    "rlg_auto": Floors(),
    "rlg_diffuser": Floors(),
    "clvp": Floors(exact=115, rounded=51.6, narrow=51.6),
    "odd tortoise, clvp": Floors(exact=115),
    # the random model is three times as sensitive as a trained one, and the inputs of the loop are rounded too
    "diffusion": Floors(rounded=45.7, narrow=45.9),
    "univnet": Floors(),
    "hifigan": Floors(),
    "bigvgan": Floors(rounded=50, narrow=50),
    "source_filter": Floors(),
    "mel_source_filter": Floors(),
    "encoder": Floors(),
    "decoder": Floors(rounded=48, narrow=45),
    "decoder, prefill": Floors(rounded=48, narrow=45),
    "decoder, state": Floors(exact=77, core_ai=60, rounded=48, narrow=45),
    "decoder, store": Floors(exact=77, core_ai=60, rounded=48, narrow=45),
    "fastspeech": Floors(exact=115, rounded=50, narrow=48),
    "vocoder": Floors(rounded=50, narrow=50),
    "hibari": Floors(),
}
# with random weights, the unconditioned row hardly varies along frames, and norms amplify its rounding
UNCONDITIONED = Floors(exact=78, core_ai=78, rounded=25, narrow=25)


def floors_of(model: str, network: str, kind: str) -> Floors:
    return next(FLOORS[key] for key in (f"{model}, {network}", f"{network}, {kind}", network) if key in FLOORS)


OUTLYING = {"diffusion": 44.5}  # required dB with outliers, if it is not 50


class AnyNetwork(CoreMLOptions):
    """Builds every network in the precision asked for, even UnivNet, whose packages are always fp32."""

    def stored(self, network: str) -> str:
        return self.precision


OPTIONS = AnyNetwork(
    lanes=(2,),
    caches=("io", "state"),
    buckets={
        "prefill": (32,),
        "step": (96,),
        "condition": (32,),
        "denoise": (128,),
        "clvp_text": (40,),
        "clvp_speech": (40,),
        "univnet": (14,),
        "hifigan": (14,),
        "bigvgan": (14,),
        "source_filter": (64,),
        "mel_source_filter": (64,),
        "text": (24,),
        "mel": (64,),
        "vocoder": (14,),
        "prosody": (48,),
        "spectra": (48,),
    },
)
ODD = {
    "clvp": CLVPConfig(
        dim_text=96,
        dim_speech=64,
        dim_latent=48,
        text_enc_depth=2,
        text_heads=2,
        speech_enc_depth=3,
        speech_heads=1,
        num_text_tokens=50,
        num_speech_tokens=90,
    ),
    "diffusion": DiffusionConfig(model_channels=48, num_layers=1, in_latent_channels=20, num_heads=3),
    "bigvgan": BigVGANConfig(
        upsample_initial_channel=64, resblock_kernel_sizes=(3, 5), resblock_dilation_sizes=((1, 3), (1, 2))
    ),
}


Tensors = dict[str, torch.Tensor]
# network → key of its weights, channel, and the value that is added there
OUTLIERS: dict[str, list[tuple[str, int, float]]] = {
    "autoregressive": [("gpt.h.0.mlp.c_proj.bias", 7, 6000), ("gpt.h.0.mlp.c_proj.bias", 40, -3600)],
    "conditioning_encoder": [("init.bias", 3, 3000), ("init.bias", -20, -2500)],
    "contextual_embedder": [("1.bias", 3, 3000), ("1.bias", -20, -2500)],
    "clvp": [
        ("text_emb.weight", 3, 6000),
        ("text_emb.weight", 20, -2500),
        ("speech_emb.weight", 5, 6000),
        ("speech_emb.weight", 30, -2500),
    ],
    "diffusion": [
        ("latent_conditioner.0.bias", 5, 3000),
        ("latent_conditioner.0.bias", 20, -2500),
        ("integrating_conv.bias", 5, 3000),
        ("integrating_conv.bias", 20, -2500),
        ("conditioning_timestep_integrator.0.resblk.out_layers.3.bias", 7, 2000),
    ],
}


def outlying(network: str, tensors: Tensors) -> Tensors:
    """Thousands in single channels of the residual stream, which the next norms reduce, as in trained networks."""
    for key, channel, value in OUTLIERS.get(network, ()):
        tensors[key][..., channel] += value
    for key, tensor in tensors.items():
        if network == "clvp" and (key.endswith(".0.0.g") or key.endswith("transformer.norm.weight")):
            tensor *= 100
            tensor[[3, 5, 20, 30]] *= 1e-5
        if network == "autoregressive" and re.fullmatch(r"gpt\.h\.[12]\.ln_[12]\.weight", key):
            tensor[[7, 40]] /= 600
    return tensors


# network → part of the keys of its weights, and a factor for these weights
CALMER = {"univnet": ("kernel_conv.weight", 0.05), "bigvgan": ("", 0.5)}


def calmer(network: str, tensors: Tensors) -> Tensors:
    """Weights of vocoders whose gates do not saturate, and whose sine waves are not chaotic."""
    part, factor = CALMER.get(network, ("", 1.0))
    buffers = layout(networks.NETWORKS[network], random_model.CONFIGS[network]).buffers
    return {key: tensor * factor if part in key and key not in buffers else tensor for key, tensor in tensors.items()}


def quiet(network: str, tensors: Tensors) -> Tensors:
    """Small embeddings, of which 1/64 squared underflows in fp16, and some that are zero."""
    for side in ("text", "speech") if network == "clvp" else ():
        tensors[f"{side}_emb.weight"] *= 0.01
        tensors[f"{side}_emb.weight"][::9] = 0
    return tensors


def random_tortoise(folder: Path, change: Callable[[str, Tensors], Tensors] = calmer) -> Bundle:
    """The random model with changed weights."""
    contents = random_model.random_contents()
    return write_bundle(
        replace(contents, tensors=lambda network: change(network, contents.tensors(network))), folder / "random"
    )


def odd_tortoise(folder: Path) -> Bundle:
    """Its decoder returns as many channels as its diffusion takes."""
    narrow = replace(random_model.CONFIGS["autoregressive"], model_dim=ODD["diffusion"].in_latent_channels)
    with pytest.MonkeyPatch.context() as patch:
        for network, config in {**ODD, "autoregressive": narrow}.items():
            patch.setitem(random_model.CONFIGS, network, config)
        return random_tortoise(folder)


MODELS: dict[str, Callable[[Path], Bundle]] = {
    "tortoise": random_tortoise,
    "other clips": random_tortoise,
    "odd tortoise": odd_tortoise,
    "demo": lambda folder: open_model("demo"),
    "whisper": lambda folder: imported(write_hugging_face(folder, RandomSizes(n_audio_ctx=20)), folder / "bundle"),
    "fastspeech": fastspeech_bundle,
    "hibari": lambda folder: open_model("heart"),
}
NETWORKS = {
    "tortoise": tuple(random_model.CONFIGS),
    "odd tortoise": tuple(ODD),
    "other clips": ("conditioning_encoder", "contextual_embedder"),
    "demo": ("source_filter", "mel_source_filter"),
    "whisper": ("encoder", "decoder"),
    "fastspeech": ("fastspeech", "vocoder"),
    "hibari": ("hibari",),
}


@contextmanager
def clips_of(model: str) -> Iterator[None]:
    """Within it, the encoders of a model's clips are built for 33 and 838 frames if it is "other clips"."""
    with pytest.MonkeyPatch.context() as patch:
        for builder, frames in CLIPS.items() if model == "other clips" else ():
            patch.setattr(conditioning, builder, partial(getattr(conditioning, builder), frames=frames))
        yield


CLIPS = {"ar_conditioning": 33, "diffusion_conditioning": 838}  # numbers of frames that no model's own clips have
CASES = [(model, network) for model, networks in NETWORKS.items() for network in networks]
# networks that another case converts in other sizes
OTHER_SIZES = {
    ("odd tortoise", "clvp"),
    ("odd tortoise", "diffusion"),
    *(case for case in CASES if case[0] == "other clips"),
}
PACKAGES = [
    (*case, precision) for case in CASES for precision in ARITHMETICS if precision == "fp32" or case not in OTHER_SIZES
]
