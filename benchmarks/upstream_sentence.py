"""Times upstream's whole pipeline, kv_cache mode. Runs inside the environment that benchmarks/upstream.py makes.

    python upstream_sentence.py CHECKPOINTS --threads 1 < requests > readings

Nothing of upstream is changed: a request goes through ``TextToSpeech.tts``, whose networks are wrapped in clocks, and
its files come from CHECKPOINTS in place of the hub. A request is {"text", "candidates", "batch", "steps", "guided",
"codes", "seed"}: candidates are sampled ``batch`` at a time, ``codes`` is max_mel_tokens. Its reading is {"took",
"seconds", "codes", "stages": {decode, rank, latents, diffuse, vocode}}: seconds of work, of audio, codes sampled in all
candidates, and seconds of each stage; latents is the second pass of the decoder. The voice is random latents. Requests
and readings are JSON, one a line; a line {"ready": ..} comes first, once all models are loaded.

This file imports nothing of the project, which the environment does not have, but its neighbour, a script like it.
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
from upstream_decode import without_torchaudio

SAMPLE_RATE = 24000


def stand_in(name: str, **names: object) -> types.ModuleType:
    """An empty module for one that upstream imports, and of which nothing that is timed is ever called."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(names)
    sys.modules[name] = module
    return module


def import_api(checkpoints: Path):
    """upstream's api.py, its files those of ``checkpoints``."""
    without_torchaudio()
    stand_in("progressbar")
    stand_in("rotary_embedding_torch", RotaryEmbedding=object, broadcat=None)
    stand_in("librosa", filters=stand_in("librosa.filters", mel=None),
             util=stand_in("librosa.util", pad_center=None, tiny=None, normalize=None))
    from tortoise import api

    api.hf_hub_download = lambda repo_id, filename, cache_dir: str(checkpoints / filename)
    return api


class Stages:
    """Seconds that each stage took since the last ``take``."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    def clock(self, stage: str, owner: object, name: str, told: Callable[[object], None] = lambda result: None) -> None:
        """Replace a function of ``owner`` by itself with a clock; ``told`` gets what it returns."""
        function = getattr(owner, name)

        def timed(*args, **kwargs):
            start = time.perf_counter()
            result = function(*args, **kwargs)
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start
            told(result)
            return result

        setattr(owner, name, timed)

    def take(self) -> dict[str, float]:
        seconds, self.seconds = self.seconds, {}
        return seconds


class Speaker:
    """Upstream with all its models loaded."""

    def __init__(self, checkpoints: Path):
        api = import_api(checkpoints)
        self.tts = api.TextToSpeech(models_dir=str(checkpoints), enable_redaction=False, kv_cache=True)
        self.codes, self.stages = 0, Stages()
        self.stages.clock("decode", self.tts.autoregressive, "inference_speech", self._count)
        self.stages.clock("rank", self.tts.clvp, "forward")
        self.stages.clock("latents", self.tts.autoregressive, "forward")
        self.stages.clock("diffuse", api, "do_spectrogram_diffusion")
        self.stages.clock("vocode", self.tts.vocoder, "inference")

    def _count(self, codes: torch.Tensor) -> None:
        self.codes += codes.numel()

    def say(self, request: dict) -> dict:
        """The reading of a request; see above."""
        self.tts.autoregressive_batch_size = request["batch"]
        self.codes = 0
        generator = torch.Generator().manual_seed(request["seed"])
        widths = self.tts.autoregressive.model_dim, 2 * self.tts.diffusion.model_channels
        voice = tuple(torch.randn(1, width, generator=generator) for width in widths)
        start = time.perf_counter()
        audio = self.tts.tts(request["text"], conditioning_latents=voice, use_deterministic_seed=request["seed"],
                             num_autoregressive_samples=request["candidates"], max_mel_tokens=request["codes"],
                             diffusion_iterations=request["steps"], cond_free=request["guided"], temperature=0.8,
                             length_penalty=1.0, repetition_penalty=2.0, top_p=0.8, verbose=False)
        took = time.perf_counter() - start
        return {"took": took, "seconds": audio.shape[-1] / SAMPLE_RATE, "codes": self.codes,
                "stages": self.stages.take()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoints", type=Path, help="folder with the official files")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    replies = sys.stdout
    sys.stdout = sys.stderr      # upstream prints
    speaker = Speaker(arguments.checkpoints)
    print(json.dumps({"ready": True, "torch": torch.__version__}), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(speaker.say(json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main()
