"""Runs upstream's own networks on request, in the environment that ``python -m benchmarks upstream-env`` makes.

    python upstream_worker.py decoder|diffusion|speech CHECKPOINTS --threads 1

Upstream's code is unchanged; its functions are wrapped to time them. Requests and answers are JSON, one a line; a line
{"ready": true} comes first, when the models are loaded. Requests, and their answers:

- decoder: {"lanes", "prefix", "steps"} → {"prefill_ms", "step_ms": [..], "core_ms"}: ``UnifiedVoice.inference_speech``
  with its kv-cache, the first forward and the later ones; "core_ms" is the mean time that a step kept the cores busy;
- diffusion: {"frames"} → {"step_ms", "core_ms"}: a guided step, one call with conditioning and one without;
- speech: {"text", "candidates", "batch", "steps", "guided", "codes", "seed"} → {"elapsed", "seconds", "codes",
  "stages"}: ``TextToSpeech.tts`` with random latents as the voice; "latents" is the second pass of the decoder.

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

SAMPLE_RATE, TIMESTEP = 24000, 2000


def stand_in(name: str, **names: object) -> types.ModuleType:
    """Install an empty module in place of one that upstream imports and does not use in the timed code."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)      # transformers asks find_spec for torchaudio
    module.__dict__.update(names)
    sys.modules[name] = module
    return module


def milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


class UpstreamDecoder:
    """UnifiedVoice as upstream's api.py builds it, its widths read from the checkpoint."""

    def __init__(self, checkpoints: Path, heads: int):
        stand_in("torchaudio")
        from tortoise.models.autoregressive import UnifiedVoice

        path = checkpoints / "autoregressive.pth"
        weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        layers = 1 + max(int(key.split(".")[2]) for key in weights if key.startswith("gpt.h."))
        self.model = UnifiedVoice(
            max_mel_tokens=604, max_text_tokens=402, max_conditioning_inputs=2, layers=layers,
            model_dim=weights["mel_embedding.weight"].shape[1], heads=heads, number_text_tokens=255,
            start_text_token=255, checkpointing=False, train_solo_embeddings=False)
        # official files hold the causal masks that newer transformers no longer store
        mismatch = self.model.load_state_dict(weights, strict=False)
        if mismatch.missing_keys:
            sys.exit(f"{path} lacks {mismatch.missing_keys[0]}")
        self.model.eval().post_init_gpt2_config(kv_cache=True)

    def answer(self, request: dict) -> dict:
        """``prefix``: positions before the first code (voice, start, text, stop, start of codes)."""
        torch.manual_seed(0)
        voice = torch.randn(1, self.model.model_dim)
        text = torch.randint(1, 255, (1, request["prefix"] - 4))
        network, times, core = self.model.inference_model, [], []
        forward = type(network).forward.__get__(network)

        @functools.wraps(forward)       # generate() reads the signature
        def timed_forward(*args, **kwargs):
            start, busy = time.perf_counter(), time.process_time()
            result = forward(*args, **kwargs)
            times.append(1000 * (time.perf_counter() - start))
            core.append(1000 * (time.process_time() - busy))
            return result

        network.forward = timed_forward
        length = request["steps"] + 1
        self.model.inference_speech(voice, text, do_sample=True, top_p=0.8, temperature=0.8, repetition_penalty=2.0,
                                    num_return_sequences=request["lanes"], max_generate_length=length,
                                    min_new_tokens=length)
        return {"prefill_ms": times[0], "step_ms": times[1:], "core_ms": sum(core[1:]) / len(core[1:])}


class UpstreamDenoiser:
    """DiffusionTts as upstream's api.py builds it, its widths read from the checkpoint."""

    def __init__(self, checkpoints: Path, heads: int):
        stand_in("torchaudio")
        from tortoise.models.diffusion_decoder import DiffusionTts

        weights = torch.load(checkpoints / "diffusion_decoder.pth", map_location="cpu", weights_only=True, mmap=True)
        blocks = 1 + max(int(key.split(".")[1]) for key in weights if key.startswith("layers."))
        self.model = DiffusionTts(
            model_channels=weights["unconditioned_embedding"].shape[1], num_layers=blocks - 3, num_heads=heads,
            in_channels=weights["inp_block.weight"].shape[1], out_channels=weights["out.2.weight"].shape[0],
            in_latent_channels=weights["latent_conditioner.0.weight"].shape[1],
            in_tokens=weights["code_embedding.weight"].shape[0], dropout=0, use_fp16=False, layer_drop=0,
            unconditioned_percentage=0)
        self.model.load_state_dict(weights)
        self.model.eval()

    def answer(self, request: dict) -> dict:
        """The conditioning is precomputed, as upstream's api.py does."""
        generator = torch.Generator().manual_seed(0)
        x, code = (torch.randn(1, width, request["frames"], generator=generator)
                   for width in (self.model.in_channels, self.model.model_channels))
        timesteps, busy = torch.tensor([TIMESTEP]), time.process_time()
        duration = sum(milliseconds(lambda free=free: self.model(
            x, timesteps, precomputed_aligned_embeddings=code, conditioning_free=free)) for free in (False, True))
        return {"step_ms": duration, "core_ms": 1000 * (time.process_time() - busy)}


class UpstreamSpeaker:
    """Upstream's TextToSpeech with all its models loaded from the folder of checkpoints."""

    def __init__(self, checkpoints: Path, heads: int):
        stand_in("torchaudio")
        stand_in("progressbar")
        stand_in("rotary_embedding_torch", RotaryEmbedding=object, broadcat=None)
        stand_in("librosa", filters=stand_in("librosa.filters", mel=None),
                 util=stand_in("librosa.util", pad_center=None, tiny=None, normalize=None))
        from tortoise import api

        api.hf_hub_download = lambda repo_id, filename, cache_dir: str(checkpoints / filename)
        self.tts = api.TextToSpeech(models_dir=str(checkpoints), enable_redaction=False, kv_cache=True)
        self.codes, self.stages = 0, {}
        for stage, owner, name in (("decode", self.tts.autoregressive, "inference_speech"),
                                   ("rank", self.tts.clvp, "forward"), ("latents", self.tts.autoregressive, "forward"),
                                   ("diffuse", api, "do_spectrogram_diffusion"),
                                   ("vocode", self.tts.vocoder, "inference")):
            setattr(owner, name, self.timed(stage, getattr(owner, name)))

    def timed(self, stage: str, function: Callable) -> Callable:
        """``function``, timed as ``stage``; for "decode", codes are counted too."""
        def call(*args, **kwargs):
            start = time.perf_counter()
            result = function(*args, **kwargs)
            self.stages[stage] = self.stages.get(stage, 0.0) + time.perf_counter() - start
            self.codes += result.numel() if stage == "decode" else 0
            return result

        return call

    def answer(self, request: dict) -> dict:
        self.tts.autoregressive_batch_size = request["batch"]
        self.codes, self.stages = 0, {}
        generator = torch.Generator().manual_seed(request["seed"])
        widths = self.tts.autoregressive.model_dim, 2 * self.tts.diffusion.model_channels
        voice = tuple(torch.randn(1, width, generator=generator) for width in widths)
        start = time.perf_counter()
        audio = self.tts.tts(request["text"], conditioning_latents=voice, use_deterministic_seed=request["seed"],
                             num_autoregressive_samples=request["candidates"], max_mel_tokens=request["codes"],
                             diffusion_iterations=request["steps"], cond_free=request["guided"], temperature=0.8,
                             length_penalty=1.0, repetition_penalty=2.0, top_p=0.8, verbose=False)
        return {"elapsed": time.perf_counter() - start, "seconds": audio.shape[-1] / SAMPLE_RATE, "codes": self.codes,
                "stages": self.stages}


TASKS = {"decoder": UpstreamDecoder, "diffusion": UpstreamDenoiser, "speech": UpstreamSpeaker}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("checkpoints", type=Path, help="folder with the official files")
    parser.add_argument("--heads", type=int, default=16, help="attention heads, which a checkpoint does not state")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    answers, sys.stdout = sys.stdout, sys.stderr        # upstream and transformers print
    model = TASKS[arguments.task](arguments.checkpoints, arguments.heads)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            print(json.dumps(model.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
