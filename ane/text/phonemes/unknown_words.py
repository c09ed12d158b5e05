"""Turn the letters of unknown words into phonemes with a small Transformer, whose weights come from hibari-tts.

The network predicts four symbols for each letter. A symbol is a phoneme or a blank. As in CTC, equal neighbours count
once, and then blanks are dropped.
"""

from functools import cache, lru_cache

import numpy as np
from safetensors.numpy import load_file

from ane.text.phonemes.dictionary import DATA

HEADS, LAYERS, LONGEST = 4, 4, 24  # the network reads only the first LONGEST letters of a word


@cache
def alphabets() -> tuple[dict[str, int], dict[int, str]]:
    """Return two tables: the number of each letter, and the phoneme of each number. The number 0 is a blank."""
    letters, phonemes = (DATA / "characters.txt").read_text(encoding="utf-8").split("\n")[:2]
    return {letter: number for number, letter in enumerate(letters, 1)}, dict(enumerate(phonemes, 1))


@cache
def weights() -> dict[str, np.ndarray]:
    return {key: value.astype(np.float32) for key, value in load_file(DATA / "unknown_words.safetensors").items()}


@lru_cache(4096)
def spoken_letters(word: str) -> str:
    """Predict the phonemes of a word. Returns "" if the network knows none of its letters."""
    letters, phonemes = alphabets()
    ids = [letters[letter] for letter in word if letter in letters][:LONGEST]
    if not ids:
        return ""
    w = weights()
    x = w["emb"][ids] + w["pos"][: len(ids)]  # (T, C)
    for layer in range(LAYERS):
        x = x + attention(normalised(x, w, f"{layer}.norm1"), w, layer)
        inner = gelu(normalised(x, w, f"{layer}.norm2") @ w[f"{layer}.linear1.weight"] + w[f"{layer}.linear1.bias"])
        x = x + inner @ w[f"{layer}.linear2.weight"] + w[f"{layer}.linear2.bias"]
    scores = normalised(x, w, "norm") @ w["head.weight"] + w["head.bias"]  # (T, 4 · phonemes)
    best = scores.reshape(-1, len(phonemes) + 1).argmax(axis=1).tolist()
    return "".join(phonemes.get(label, "") for label, before in zip(best, [0, *best], strict=False) if label != before)


def attention(x: np.ndarray, w: dict[str, np.ndarray], layer: int) -> np.ndarray:
    """Apply the self-attention of layer ``layer`` with the weights ``w``: (T, C) → (T, C)."""
    q, k, v = (
        (x @ w[f"{layer}.qkv.weight"] + w[f"{layer}.qkv.bias"]).reshape(len(x), 3, HEADS, -1).transpose(1, 2, 0, 3)
    )  # each (h, T, C / h)
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = shares / shares.sum(axis=-1, keepdims=True) @ v
    return mixed.transpose(1, 0, 2).reshape(x.shape) @ w[f"{layer}.out.weight"] + w[f"{layer}.out.bias"]


def normalised(x: np.ndarray, w: dict[str, np.ndarray], name: str) -> np.ndarray:
    """Apply the layer normalisation ``name`` with the weights ``w``."""
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    """Compute GELU with the tanh approximation, whose error is below 5e-4."""
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi).astype(np.float32) * (x + 0.044715 * x**3)))
