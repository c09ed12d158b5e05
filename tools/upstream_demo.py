"""Run unmodified upstream with the embedded weights, and write golden tensors for tests/parity/test_packages.py.

    UPSTREAM_ENV/bin/python tools/upstream_demo.py ane/demo/bundle tests/parity/demo.safetensors

docs/benchmarks.md says how to make the environment of upstream. This script imports nothing from this project. It
writes inputs (in.*), upstream's float32 outputs (out.*), and the largest errors of these against float64 (noise.*).
"""

import functools
import importlib.machinery
import json
import sys
import types
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file


def stand_in(name: str, **attributes: object) -> None:
    """Replace a module that upstream imports and that none of its networks calls."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(attributes)
    sys.modules[name] = module


for unused, names in (("torchaudio", ()), ("rotary_embedding_torch", ("RotaryEmbedding", "broadcat"))):
    stand_in(unused, **dict.fromkeys(names, object))

import tortoise.models.arch_util as arch_util  # noqa: E402
import tortoise.models.diffusion_decoder as diffusion_decoder  # noqa: E402
import tortoise.models.vocoder as vocoder  # noqa: E402
from tortoise.models.autoregressive import UnifiedVoice  # noqa: E402
from tortoise.models.clvp import CLVP  # noqa: E402
from tortoise.models.hifigan_decoder import HifiganGenerator  # noqa: E402
from tortoise.models.random_latent_generator import RandomLatentConverter  # noqa: E402


def loaded(module: torch.nn.Module, *parts: tuple[str, dict[str, torch.Tensor]]) -> torch.nn.Module:
    """Load weights, with weight norm unfolded (g = ‖v‖); parameters of training keep their initial values."""
    weights = {prefix + key: tensor.float() for prefix, part in parts for key, tensor in part.items()}
    state, used = module.state_dict(), set()
    for key in state:
        plain = key.removesuffix("_g").removesuffix("_v")
        if plain not in weights:
            continue
        used.add(plain)
        tensor = weights[plain]
        if key.endswith("weight_g"):
            tensor = torch.linalg.vector_norm(tensor, dim=tuple(range(1, tensor.dim())), keepdim=True)
        state[key] = tensor
    assert used == set(weights), sorted(set(weights) - used)[:3]
    module.load_state_dict(state)
    module.eval()  # UnivNet's own eval() returns nothing
    return module


def widened(forward):
    """``forward`` on its input in float64."""
    return lambda self, x: forward(self, x.double())


@torch.no_grad()
def main(bundle: Path, destination: Path) -> None:
    stated = json.loads((bundle / "bundle.json").read_text())["networks"]
    config = {name: network["config"] for name, network in stated.items()}
    weights = {name: load_file(bundle / network["file"]) for name, network in stated.items()}
    generator = torch.Generator().manual_seed(0)
    normal = functools.partial(torch.randn, generator=generator)
    ar, diffusion = config["autoregressive"], config["diffusion"]
    with safe_open(bundle / "voices" / "heart.safetensors", framework="pt") as voice:
        given = {"ar_latent": voice.get_tensor("ar_latent"), "diffusion_latent": voice.get_tensor("diffusion_latent")}
    given |= {
        "tokens": torch.randint(2, 30, (1, 25), generator=generator),
        "codes": torch.randint(0, ar["calm_token"], (1, 36), generator=generator),
        "latents": normal(1, 30, ar["model_dim"]),
        "x": normal(1, 100, 130),
        "timestep": torch.tensor([700]),
        "mel": -6 + 2 * normal(1, 100, 40),
        "noise": normal(1, config["univnet"]["noise_dim"], 50),
        "clip_mel": normal(1, 80, 200),
        "clip_diffusion_mel": -6 + 2 * normal(1, 100, 160),
    }
    outputs = {
        dtype: run(
            config,
            weights,
            {key: value if value.dtype == torch.int64 else value.to(dtype) for key, value in given.items()},
            dtype,
            ar,
            diffusion,
        )
        for dtype in (torch.float32, torch.float64)
    }
    single, double = outputs[torch.float32], outputs[torch.float64]
    document = {f"in.{key}": value for key, value in given.items()}
    document |= {f"out.{key}": value.contiguous() for key, value in single.items()}
    document |= {f"noise.{key}": (value.double() - double[key].double()).abs().max() for key, value in single.items()}
    hashes = {name: network["sha256"] for name, network in stated.items()}
    save_file(document, destination, metadata={"weights": json.dumps(hashes, sort_keys=True)})


def run(
    config: dict, weights: dict, given: dict, dtype: torch.dtype, ar: dict, diffusion: dict
) -> dict[str, torch.Tensor]:
    if dtype == torch.float64:  # upstream supports only float32: it converts some tensors to float32, and checks for it
        diffusion_decoder.is_latent = torch.is_floating_point
        for kind, forward in (
            (arch_util.GroupNorm32, torch.nn.GroupNorm.forward),
            (torch.nn.Linear, None),
            (torch.nn.Conv1d, None),
            (torch.nn.GroupNorm, None),
        ):
            kind.forward = widened(forward or kind.forward)
    voice = loaded(
        UnifiedVoice(
            layers=ar["layers"],
            model_dim=ar["model_dim"],
            heads=ar["heads"],
            max_text_tokens=ar["max_text_tokens"],
            max_mel_tokens=ar["max_mel_tokens"],
            max_conditioning_inputs=ar["max_conditioning_inputs"],
            number_text_tokens=ar["number_text_tokens"],
            start_text_token=ar["start_text_token"],
            number_mel_codes=ar["number_mel_codes"],
            start_mel_token=ar["start_mel_token"],
            stop_mel_token=ar["stop_mel_token"],
            checkpointing=False,
            train_solo_embeddings=False,
        ),
        ("", weights["autoregressive"]),
        ("conditioning_encoder.", weights["conditioning_encoder"]),
    ).to(dtype)
    denoiser = loaded(
        diffusion_decoder.DiffusionTts(
            model_channels=diffusion["model_channels"],
            num_layers=diffusion["num_layers"],
            in_channels=100,
            out_channels=200,
            in_latent_channels=diffusion["in_latent_channels"],
            in_tokens=diffusion["in_tokens"],
            dropout=0,
            use_fp16=False,
            num_heads=diffusion["num_heads"],
            layer_drop=0,
            unconditioned_percentage=0,
        ),
        ("", weights["diffusion"]),
        ("contextual_embedder.", weights["contextual_embedder"]),
    ).to(dtype)
    ranker = loaded(
        CLVP(**config["clvp"], text_seq_len=350, speech_seq_len=430, use_xformers=True), ("", weights["clvp"])
    ).to(dtype)
    made = {
        "ar_conditioning": voice.get_conditioning(given["clip_mel"][:, None]),
        "diffusion_conditioning": denoiser.get_conditioning(given["clip_diffusion_mel"][:, None]),
    }
    codes = given["codes"]
    made["latents"] = voice(
        given["ar_latent"],
        given["tokens"],
        torch.tensor([given["tokens"].shape[1]]),
        codes,
        torch.tensor([codes.shape[1] * 1024]),
        return_latent=True,
        clip_inputs=False,
    )
    frames = given["x"].shape[-1]
    aligned = denoiser.timestep_independent(given["latents"], given["diffusion_latent"], frames, False)
    made["denoised"] = denoiser(given["x"], given["timestep"], precomputed_aligned_embeddings=aligned)
    made["unconditioned"] = denoiser(
        given["x"], given["timestep"], precomputed_aligned_embeddings=aligned, conditioning_free=True
    )
    made["clvp"] = ranker(given["tokens"], codes, return_loss=False)

    univnet = config["univnet"]
    vocoder.LVCBlock.__init__ = functools.partialmethod(  # upstream's constructor does not pass this argument on
        original_lvc, kpnet_hidden_channels=univnet["kpnet_hidden_channels"]
    )
    sound = loaded(
        vocoder.UnivNetGenerator(
            noise_dim=univnet["noise_dim"],
            channel_size=univnet["channel_size"],
            dilations=list(univnet["dilations"]),
            strides=list(univnet["strides"]),
            lReLU_slope=univnet["lReLU_slope"],
            hop_length=univnet["hop_length"],
            kpnet_conv_size=univnet["kpnet_conv_size"],
            n_mel_channels=univnet["n_mel_channels"],
        ),
        ("", weights["univnet"]),
    ).to(dtype)
    made["univnet"] = sound.inference(given["mel"], given["noise"])
    arguments = {key: value for key, value in config["hifigan"].items() if key not in ("in_channels", "out_channels")}
    direct = loaded(
        HifiganGenerator(in_channels=config["hifigan"]["in_channels"], out_channels=1, resblock_type="1", **arguments),
        ("", weights["hifigan"]),
    ).to(dtype)
    # as in its inference(), which moves
    up = F.interpolate(given["latents"].transpose(1, 2), scale_factor=[4.0], mode="linear")
    up = F.interpolate(up, scale_factor=[24000 / 22050], mode="linear")  # the tensors to CUDA
    made["hifigan"] = direct(up, given["ar_latent"][..., None])
    for name in ("rlg_auto", "rlg_diffuser"):
        converter = loaded(RandomLatentConverter(config[name]["channels"]), ("", weights[name])).to(dtype)
        made[name] = converter.layers(given["ar_latent" if name == "rlg_auto" else "diffusion_latent"])
    return made


original_lvc = vocoder.LVCBlock.__init__

if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
