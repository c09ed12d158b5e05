"""Times upstream's own denoiser. Runs inside the environment that benchmarks/upstream.py makes.

    python upstream_denoise.py CHECKPOINTS --heads 16 --threads 1 < requests > readings

A request is {"frames": 400}, its reading {"frames", "step_ms"}: a guided step as upstream's sampler takes it, one call
of the network with conditioning and one without. The conditioning is aligned beforehand, as upstream's api.py does.
Requests and readings are JSON, one a line; a line {"ready": ..} comes first, once the model is loaded.

This file imports nothing of the project, which the environment does not have, but its neighbour, a script like it.
"""

import time
from pathlib import Path

import torch
from upstream_decode import serve, without_torchaudio

TIMESTEP = 2000


def load(path: Path, heads: int, device: str):
    """DiffusionTts as upstream's api.py builds it, its widths read from the checkpoint."""
    without_torchaudio()
    from tortoise.models.diffusion_decoder import DiffusionTts

    weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    blocks = 1 + max(int(key.split(".")[1]) for key in weights if key.startswith("layers."))
    model = DiffusionTts(
        model_channels=weights["unconditioned_embedding"].shape[1], num_layers=blocks - 3, num_heads=heads,
        in_channels=weights["inp_block.weight"].shape[1], out_channels=weights["out.2.weight"].shape[0],
        in_latent_channels=weights["latent_conditioner.0.weight"].shape[1],
        in_tokens=weights["code_embedding.weight"].shape[0], dropout=0, use_fp16=False, layer_drop=0,
        unconditioned_percentage=0)
    model.load_state_dict(weights)
    return model.eval().to(device)


@torch.inference_mode()
def answer(model, request: dict, device: str) -> dict:
    frames = request["frames"]
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    generator = torch.Generator().manual_seed(0)
    x, code = (torch.randn(1, width, frames, generator=generator).to(device)
               for width in (model.in_channels, model.model_channels))
    timesteps = torch.tensor([TIMESTEP], device=device)
    wait()
    start = time.perf_counter()
    model(x, timesteps, precomputed_aligned_embeddings=code)
    model(x, timesteps, precomputed_aligned_embeddings=code, conditioning_free=True)
    wait()
    return {"frames": frames, "step_ms": 1000 * (time.perf_counter() - start)}


if __name__ == "__main__":
    serve(__doc__.splitlines()[0], "diffusion_decoder.pth", load, answer)
