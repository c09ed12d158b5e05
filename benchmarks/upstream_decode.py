"""Times upstream's own decoding, kv_cache mode. Runs inside the environment that benchmarks/upstream.py makes.

    python upstream_decode.py CHECKPOINTS --heads 16 --threads 1 < requests > readings

Nothing of upstream is changed: a request goes through ``UnifiedVoice.inference_speech``, and the network's forward is
wrapped in a clock. Requests and readings are JSON, one a line; a request is {"lanes": 1, "prefix": 44, "steps": 32} and
its reading {"lanes", "prefix", "prefill_ms", "step_ms": [..], "token_ms"}: the first forward, every later one, and one
turn of the whole loop with its sampling. A line {"ready": ..} comes first, once the model is loaded.

This file imports nothing of the project: the environment does not have it.
"""

import argparse
import functools
import importlib.machinery
import json
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import torch


def without_torchaudio() -> None:
    """Put an empty torchaudio in place: upstream's arch_util imports it, and what is timed never calls it."""
    stand_in = types.ModuleType("torchaudio")
    stand_in.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)      # transformers asks find_spec for it
    sys.modules["torchaudio"] = stand_in


def import_unified_voice():
    without_torchaudio()
    from tortoise.models.autoregressive import UnifiedVoice

    return UnifiedVoice


def load(path: Path, heads: int, device: str):
    """UnifiedVoice as upstream's api.py builds it, its widths read from the checkpoint."""
    weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    layers = 1 + max(int(key.split(".")[2]) for key in weights if key.startswith("gpt.h."))
    model = import_unified_voice()(
        max_mel_tokens=604, max_text_tokens=402, max_conditioning_inputs=2, layers=layers,
        model_dim=weights["mel_embedding.weight"].shape[1], heads=heads, number_text_tokens=255, start_text_token=255,
        checkpointing=False, train_solo_embeddings=False)
    # official files hold the causal masks that newer transformers no longer store
    mismatch = model.load_state_dict(weights, strict=False)
    if mismatch.missing_keys:
        sys.exit(f"{path}: it lacks {mismatch.missing_keys[0]}")
    model = model.eval().to(device)
    model.post_init_gpt2_config(kv_cache=True)
    return model


class Clock:
    """Wraps a forward and keeps the milliseconds of each call."""

    def __init__(self, forward, device: str):
        self.readings: list[float] = []
        self._forward = forward
        self._wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        functools.update_wrapper(self, forward)      # generate() reads the signature

    def __call__(self, *args, **kwargs):
        self._wait()
        start = time.perf_counter()
        result = self._forward(*args, **kwargs)
        self._wait()
        self.readings.append(1000 * (time.perf_counter() - start))
        return result


@torch.inference_mode()
def answer(model, request: dict, device: str) -> dict:
    """Decode ``steps`` codes after a prefix of ``prefix`` positions (voice, start, text, stop, first code)."""
    lanes, prefix, steps = request["lanes"], request["prefix"], request["steps"]
    torch.manual_seed(0)
    voice = torch.randn(1, model.model_dim, device=device)
    text = torch.randint(1, 255, (1, prefix - 4), device=device)
    network = model.inference_model
    clock = Clock(type(network).forward.__get__(network), device)
    network.forward = clock
    start = time.perf_counter()
    model.inference_speech(voice, text, do_sample=True, top_p=0.8, temperature=0.8, repetition_penalty=2.0,
                           num_return_sequences=lanes, max_generate_length=steps + 1, min_new_tokens=steps + 1)
    whole = 1000 * (time.perf_counter() - start)
    prefill, *step = clock.readings
    return {"lanes": lanes, "prefix": prefix, "prefill_ms": prefill, "step_ms": step,
            "token_ms": (whole - prefill) / len(step)}


def serve(description: str, file: str, load: Callable, answer: Callable) -> None:
    """Load a model from an official file, say so, then answer every request on standard input.

    ``load(path, heads, device)`` gives the model, ``answer(model, request, device)`` a reading.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("checkpoints", type=Path, help=f"folder with {file}")
    parser.add_argument("--heads", type=int, default=16, help="attention heads, which the checkpoint does not tell")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = load(arguments.checkpoints / file, arguments.heads, arguments.device)
    replies = sys.stdout
    sys.stdout = sys.stderr      # upstream and transformers print
    print(json.dumps({"ready": True, "torch": torch.__version__}), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(model, json.loads(line), arguments.device)), file=replies, flush=True)


if __name__ == "__main__":
    serve(__doc__.splitlines()[0], "autoregressive.pth", load, answer)
