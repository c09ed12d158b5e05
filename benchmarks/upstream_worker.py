"""Run upstream's networks on request, in an environment that has upstream's package and ``upstream.txt``.

    python upstream_worker.py CHECKPOINTS --threads 1

Upstream's code is unchanged, except that its functions are wrapped to time them. Requests and answers are JSON, one per
line. When the models are loaded, the program prints the line {"ready": true}. A request has "text", "candidates",
"batch", "steps", "guided", "codes" and "seed". The program passes them to ``TextToSpeech.tts``, with random latents as
the voice. The answer has "elapsed", "seconds", "codes" and "stages". The stage "latents" is the decoder's second pass.

This file imports nothing from the project, because the environment does not contain the project.
"""

import argparse
import importlib.machinery
import json
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import torch

SAMPLE_RATE = 24000


def stand_in(name: str, **names: object) -> types.ModuleType:
    """Install an empty module instead of a module that upstream imports but does not use in the timed code."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)  # transformers calls find_spec("torchaudio")
    module.__dict__.update(names)
    sys.modules[name] = module
    return module


class UpstreamSpeaker:
    """Upstream's TextToSpeech, with all its models loaded from the folder of checkpoints."""

    def __init__(self, checkpoints: Path):
        stand_in("torchaudio")
        stand_in("progressbar")
        stand_in("rotary_embedding_torch", RotaryEmbedding=object, broadcat=None)
        stand_in(
            "librosa",
            filters=stand_in("librosa.filters", mel=None),
            util=stand_in("librosa.util", pad_center=None, tiny=None, normalize=None),
        )
        from tortoise import api

        api.hf_hub_download = lambda repo_id, filename, cache_dir: str(checkpoints / filename)
        self.tts = api.TextToSpeech(models_dir=str(checkpoints), enable_redaction=False, kv_cache=True)
        self.codes, self.stages = 0, {}
        for stage, owner, name in (
            ("decode", self.tts.autoregressive, "inference_speech"),
            ("rank", self.tts.clvp, "forward"),
            ("latents", self.tts.autoregressive, "forward"),
            ("diffuse", api, "do_spectrogram_diffusion"),
            ("vocode", self.tts.vocoder, "inference"),
        ):
            setattr(owner, name, self.timed(stage, getattr(owner, name)))

    def timed(self, stage: str, function: Callable) -> Callable:
        """Wrap a function, so that its time is added to ``stage``. The stage "decode" also counts codes."""

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
        audio = self.tts.tts(
            request["text"],
            conditioning_latents=voice,
            use_deterministic_seed=request["seed"],
            num_autoregressive_samples=request["candidates"],
            max_mel_tokens=request["codes"],
            diffusion_iterations=request["steps"],
            cond_free=request["guided"],
            temperature=0.8,
            length_penalty=1.0,
            repetition_penalty=2.0,
            top_p=0.8,
            verbose=False,
        )
        return {
            "elapsed": time.perf_counter() - start,
            "seconds": audio.shape[-1] / SAMPLE_RATE,
            "codes": self.codes,
            "stages": self.stages,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoints", type=Path, help="folder with the official files")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    answers, sys.stdout = sys.stdout, sys.stderr  # upstream and transformers print
    model = UpstreamSpeaker(arguments.checkpoints)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            print(json.dumps(model.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
