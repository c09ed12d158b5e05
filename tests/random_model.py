"""Make a model of tiny size with random weights, and with the networks, settings and tokens of a real model."""

import atexit
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

from ane.bundles import Bundle
from ane.bundles.contents import Contents
from ane.bundles.family import Config
from ane.bundles.weights import layout, skeleton
from ane.bundles.writing import write_bundle
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.networks.clvp import CLVPConfig
from ane.models.tortoise.networks.conditioning import (
    ConditioningEncoderConfig,
    ContextualEmbedderConfig,
    RandomLatentConverterConfig,
)
from ane.models.tortoise.networks.diffusion_decoder import DiffusionConfig
from ane.models.tortoise.networks.hifigan import HifiganConfig
from ane.models.tortoise.networks.univnet import UnivNetConfig
from ane.voices import Voice, save_voice

CONFIGS: dict[str, Config] = {
    "autoregressive": UnifiedVoiceConfig(
        layers=3, model_dim=64, heads=4, number_mel_codes=514, start_mel_token=512, stop_mel_token=513
    ),
    "conditioning_encoder": ConditioningEncoderConfig(model_dim=64, heads=4),
    "diffusion": DiffusionConfig(model_channels=32, num_layers=2, in_latent_channels=64, num_heads=4),
    "contextual_embedder": ContextualEmbedderConfig(model_channels=32, num_heads=4),
    "clvp": CLVPConfig(
        dim_text=32,
        dim_speech=32,
        dim_latent=32,
        text_enc_depth=2,
        text_heads=1,
        num_speech_tokens=512,
        speech_enc_depth=2,
        speech_heads=1,
    ),
    "univnet": UnivNetConfig(channel_size=4),
    "hifigan": HifiganConfig(in_channels=64, upsample_initial_channel=32, cond_channels=64),
    "rlg_auto": RandomLatentConverterConfig(channels=64),
    "rlg_diffuser": RandomLatentConverterConfig(channels=64),
}
DATA = Path(str(resources.files("ane.models.tortoise"))) / "data"
STOP_BIAS = 1.2  # bias of the stop token that ends a candidate after a few seconds
LOUDNESS = 0.02  # amplitude of the vocoders' noise


def random_contents(**fields: Any) -> Contents:
    """Weights drawn from a seed; none keeps an initial value that training would change."""
    return Contents(
        "tortoise",
        Path("random numbers"),
        "random",
        CONFIGS,
        random_tensors,
        trained=False,
        tokenizer=(DATA / "tokenizer.json").read_text(encoding="utf-8"),
        mel_norms=load_file(DATA / "mel_norms.safetensors")["mel_norms"],
        default_voice="noise",
        **fields,
    )


@cache
def random_model() -> Bundle:
    """The bundle of these weights in float32, written once in a process; tests must not change it."""
    folder = tempfile.TemporaryDirectory(prefix="random-model-")
    atexit.register(folder.cleanup)
    return write_bundle(random_contents(), Path(folder.name) / "bundle")


@contextmanager
def sized(stop_bias: float = STOP_BIAS, **changes: dict[str, Any]) -> Iterator[None]:
    """Within it random models have other sizes (``autoregressive={"layers": 1}``) and end otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "STOP_BIAS", stop_bias)
        for network, sizes in changes.items():
            patch.setitem(CONFIGS, network, replace(CONFIGS[network], **sizes))
        random_model.cache_clear()
        yield
    random_model.cache_clear()


def random_tensors(network: str) -> dict[str, Tensor]:
    module = skeleton(NETWORKS[network], CONFIGS[network])
    generator = torch.Generator().manual_seed(int.from_bytes(network.encode()[:6], "big"))
    tensors = {key: draw(key, parameter, generator) for key, parameter in module.named_parameters()}
    for key in ("conv_post.weight", "conv_post.1.weight"):
        if key in tensors:
            tensors[key] *= LOUDNESS
    if network == "autoregressive":
        tensors["mel_head.bias"][CONFIGS[network].stop_mel_token] = STOP_BIAS
    state = NETWORKS[network].module(CONFIGS[network]).state_dict()
    return tensors | {key: state[key] for key in layout(NETWORKS[network], CONFIGS[network]).buffers}


def draw(key: str, parameter: nn.Parameter, generator: torch.Generator) -> Tensor:
    """Norm gains near 1, biases near 0, matrices and kernels that keep the scale of their input; the unconditioned
    embedding is normal, as upstream initialises it."""
    noise = torch.randn(parameter.shape, generator=generator)
    if key == "unconditioned_embedding":
        return noise
    if parameter.ndim <= 1:
        return 0.05 * noise if key.endswith("bias") else 1 + 0.1 * noise
    inputs = parameter.shape[0] if ".attn.c_" in key or ".mlp.c_" in key else parameter[0].numel()
    return noise / inputs**0.5


def write_random_bundle(destination: Path) -> None:
    """Write the same bundle in every run."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        latents = (rng.standard_normal((1, width), dtype=np.float32) for width in random_model().widths)
        voice = Path(folder) / "noise.safetensors"
        save_voice(voice, Voice(*latents, name="noise", source="random numbers"))
        write_bundle(
            random_contents(voices={"noise": voice}),
            destination,
            precision="fp16",
            licence="Apache-2.0",
            description="Random weights: the shape of a voice without its sound.",
        )
