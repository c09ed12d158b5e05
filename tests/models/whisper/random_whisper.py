"""A tiny Whisper checkpoint of random weights, in the layouts of OpenAI and of Hugging Face."""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from ane.models.whisper.checkpoints import SIZES
from ane.models.whisper.networks.audio_encoder import WhisperEncoder, WhisperEncoderConfig
from ane.models.whisper.networks.text_decoder import WhisperDecoder, WhisperDecoderConfig

# of multilingual.tiktoken: all single bytes, and the tokens of the texts in COVERED_TEXTS and of the symbols
RANKS = Path(__file__).with_name("multilingual.tiktoken")
COVERED_TEXTS = {
    "Hello world.", " The quick brown fox jumps over the lazy dog.", " It's 3.50, isn't it?", "naïve café — ok",
    " 1234567", "\n\n  two", "Hello there, friend.", " Hello there, friend.",
}
KNOWN_TOKENS = 256      # lower ids are single bytes, which RANKS has


@dataclass(frozen=True)
class RandomSizes:
    """Sizes under OpenAI's names; a window has 4 s, so that tests are quick."""

    n_mels: int = 80
    n_audio_ctx: int = 200
    n_audio_state: int = 8
    n_audio_head: int = 2
    n_audio_layer: int = 1
    n_vocab: int = 51865
    n_text_ctx: int = 64
    n_text_state: int = 8
    n_text_head: int = 2
    n_text_layer: int = 2


def random_tensors(sizes: RandomSizes, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights by OpenAI's keys. Tokens that RANKS may lack, and languages, are unlikely."""
    dims = asdict(sizes)
    networks = {"encoder": WhisperEncoder(WhisperEncoderConfig.from_upstream(dims)),
                "decoder": WhisperDecoder(WhisperDecoderConfig.from_upstream(dims))}
    random = torch.Generator().manual_seed(seed)
    tensors = {f"{name}.{key}": torch.randn(value.shape, generator=random) * 0.4
               for name, network in networks.items() for key, value in network.state_dict().items()}
    for key, tensor in tensors.items():
        if "ln" in key and key.endswith("weight"):
            tensor += 1
    tensors["decoder.token_embedding.weight"] *= 4
    first_special = 50257 if sizes.n_vocab > 51864 else 50256
    tensors["decoder.token_embedding.weight"][KNOWN_TOKENS:first_special] *= 0.01
    return tensors


def hugging_face_name(key: str) -> str:
    """OpenAI's name of a tensor → Hugging Face's."""
    if key.endswith(("encoder.positional_embedding", "decoder.positional_embedding")):
        return f"model.{key.replace('positional_embedding', 'embed_positions.weight')}"
    for ours, theirs in (
            ("blocks", "layers"), ("cross_attn_ln", "encoder_attn_layer_norm"), ("cross_attn.", "encoder_attn."),
            ("attn_ln", "self_attn_layer_norm"), (".attn.", ".self_attn."), ("mlp_ln", "final_layer_norm"),
            ("mlp.0", "fc1"), ("mlp.2", "fc2"), ("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"),
            ("attn.out.", "attn.out_proj."), ("token_embedding", "embed_tokens"), ("ln_post", "layer_norm"),
            ("decoder.ln.", "decoder.layer_norm.")):
        key = key.replace(ours, theirs)
    return f"model.{key}"


def write_openai(folder: Path, sizes: RandomSizes | None = None, seed: int = 0) -> Path:
    """Write a .pt file with the rank file beside it; returns its path."""
    sizes = sizes or RandomSizes()
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"dims": asdict(sizes), "model_state_dict": random_tensors(sizes, seed)}, folder / "random.pt")
    shutil.copy(RANKS, folder / RANKS.name)
    return folder / "random.pt"


def write_hugging_face(folder: Path, sizes: RandomSizes | None = None, seed: int = 0, shards: int = 1,
                       tied: bool = False) -> Path:
    """Write a Hugging Face folder with the rank file in it; ``tied`` adds proj_out.weight. Returns the folder."""
    sizes = sizes or RandomSizes()
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {hugging_face_name(key): tensor for key, tensor in random_tensors(sizes, seed).items()}
    if tied:
        tensors["proj_out.weight"] = tensors["model.decoder.embed_tokens.weight"].clone()
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
    else:
        places = {}
        for shard in range(shards):
            name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            part = dict(list(tensors.items())[shard::shards])
            save_file(part, folder / name)
            places |= dict.fromkeys(part, name)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    config = {"model_type": "whisper", **{theirs: asdict(sizes)[ours] for ours, theirs in SIZES.items()}}
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(RANKS, folder / RANKS.name)
    return folder
