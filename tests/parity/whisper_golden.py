"""Open Whisper's golden models for tests, and compare results with their tensors."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ane.bundles import Bundle
from ane.models.whisper.checkpoints import SIZES
from ane.models.whisper.decoding import DecodingOptions
from ane.models.whisper.networks import WhisperDecoder
from ane.models.whisper.tokens import SpecialTokens, suppressed_tokens
from tests.imported import imported
from tests.models.whisper.random_whisper import RANKS

FP32 = 1e-4  # tolerance for float32 in the golden set's README
PREFIXES = {"full": "", "short": "short_"}  # prefix of the file names of each model


def dimensions(facts: dict[str, Any], name: str) -> dict[str, int]:
    """The sizes of a golden model under OpenAI's names."""
    size = facts[name]
    return {
        "n_mels": size.get("n_mels", size.get("mels")),
        "n_audio_ctx": size.get("n_audio_ctx", size.get("src")),
        "n_text_ctx": size.get("n_text_ctx", size.get("tgt")),
        "n_vocab": size["vocab"],
        "n_audio_state": size["d"],
        "n_text_state": size["d"],
        "n_audio_head": size["h"],
        "n_text_head": size["h"],
        "n_audio_layer": size["enc"],
        "n_text_layer": size["dec"],
    }


def open_golden_whisper(golden: Path, facts: dict[str, Any], folder: Path) -> Bundle:
    """The model "full", written to ``folder`` as a Hugging Face folder."""
    shutil.copy(golden / "weights.safetensors", folder / "model.safetensors")
    shutil.copy(RANKS, folder / RANKS.name)  # a bundle needs a tokenizer, although the golden vectors are tokens
    sizes = dimensions(facts, "full")
    config = {"model_type": "whisper", **{theirs: sizes[ours] for ours, theirs in SIZES.items()}}
    (folder / "config.json").write_text(json.dumps(config))
    return imported(folder)


def columns(decoder: WhisperDecoder, tokens: np.ndarray, position: int = 0) -> np.ndarray:
    """Tokens (B, T) at positions from ``position`` on → (B, T, D)."""
    table, positions = decoder.token_embedding.weight.numpy(), decoder.positional_embedding.numpy()
    return table[tokens] + positions[position : position + tokens.shape[1]]


def uncached(decoder: WhisperDecoder, tokens: np.ndarray, states: np.ndarray) -> Tensor:
    """Hidden states (B, T, D) of all tokens in one call without a cache."""
    memory = decoder.memory(torch.from_numpy(states))
    cross = [lambda q, k=k, v=v: F.scaled_dot_product_attention(q, k, v) for k, v in memory]
    return decoder(torch.from_numpy(columns(decoder, tokens)), None, cross)


def check_logits(logits: np.ndarray, stages, call: str, assert_close) -> None:
    """Logits (B, T, V) against those stored: all of them, or the last ones and the 8 best of each position."""
    if f"{call}/logits" in stages:
        assert_close(logits, stages[f"{call}/logits"], FP32)
        return
    assert_close(logits[:, -1], stages[f"{call}/logits_last"], FP32)
    best = np.take_along_axis(logits, stages[f"{call}/logits_top_ids"].astype(np.int64), axis=-1)
    assert_close(best, stages[f"{call}/logits_top_values"], FP32)


def decoding_options(facts: dict[str, Any], case: dict[str, Any]) -> DecodingOptions:
    special, options = SpecialTokens.of(facts["n_vocab"]), case["options"]
    wanted = options.get("suppress_tokens", facts["non_speech_tokens"])
    return DecodingOptions(
        timestamps=not options["without_timestamps"],
        sample_length=case["sample_len"],
        beam_size=options.get("beam_size"),
        suppressed=() if wanted == "" else suppressed_tokens(special, wanted),
        blank=(*facts["blank"], special.end) if options.get("suppress_blank", True) else (),
    )
