"""Initial weights from an earlier voice.

The codes of a new quantiser are not those of the earlier one. The earlier voice speaks some sentences, and the
new quantiser encodes this speech. A new code's embedding starts as the mean of earlier embeddings, weighted by how
often the new code coincides with each earlier code.
"""

import subprocess
import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ane.audio import resample
from ane.backends.torch.backend import TorchBackend
from ane.bundles import Model, open_model
from ane.bundles.bundle import Bundle
from ane.models.tortoise.candidate import Prompt
from ane.models.tortoise.chunks import text_tokens
from ane.models.tortoise.decoding import decode
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.sampling import InverseCdfSampler
from ane.models.tortoise.settings import SAMPLE_RATE, Settings
from ane.models.tortoise.vocoding import hifigan_sound
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.text import Tokenizer
from ane.voices import load_voice
from training.decoder import DecoderInTraining
from training.denoiser import DenoiserInTraining
from training.quantiser import Quantiser
from training.ranking import CLVPInTraining
from training.recipe import FOLDER, C, D, EarlierVoice
from training.speech import RATE, code_mel

SENTENCES = 250         # that each of the earlier voices speaks
LANES = 32
PRIOR_WEIGHT = 0.02     # weight of the mean of all earlier embeddings in a new one
CODE_KEYS = ("mel_embedding.weight", "mel_head.weight", "mel_head.bias")    # one row for each code


def open_earlier_voice(earlier: EarlierVoice, folder: Path, voices: Sequence[str]) -> Model:
    """Open the bundle; one in the repository's history is first extracted to ``folder``.

    Raises:
        UserError: it is not there, lacks one of ``voices``, or has other latent widths or another identity.
    """
    if not earlier.commit:
        model = open_model(bundle=earlier.bundle)
    else:
        if not folder.exists():
            extract_from_history(earlier, folder)
        model = Bundle(folder)
    if earlier.identity and model.identity != earlier.identity:
        raise UserError(f"{folder}: identity {model.identity[:12]}, the recipe names {earlier.identity[:12]}: "
                        "remove the folder")
    missing = [name for name in voices if model.voices is None or not (model.voices / f"{name}.safetensors").exists()]
    if missing or model.widths != (D, 2 * C):
        raise UserError(f"earlier voice {earlier.bundle}: it must have the voices {' and '.join(voices)}, and latents "
                        f"of {D} and {2 * C} numbers")
    return model


def extract_from_history(earlier: EarlierVoice, folder: Path) -> None:
    """Extract the bundle from its commit. Raises UserError when git does not find it."""
    try:
        archive = subprocess.run(["git", "archive", "--format=tar", f"{earlier.commit}:{earlier.bundle}"],
                                 cwd=FOLDER.parent, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(f"the earlier voice is {earlier.bundle} of commit {earlier.commit[:12]}, which git does not "
                        "find: run in a clone with full history, or remove [earlier_voice] from the recipe") from error
    with replacing(folder, directory=True) as target, tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(target, filter="data")


def describe_earlier_voice(model: Model, earlier: EarlierVoice) -> dict[str, Any]:
    """Its identity, its commit if it has one, and what its bundle states of its training."""
    stated = model.manifest.source if isinstance(model, Bundle) else {}
    return {"bundle": model.identity, **({"commit": earlier.commit} if earlier.commit else {}),
            **{key: stated[key] for key in ("initialised_from", "device", "steps", "seconds") if key in stated}}


def copy_matching_weights(network: nn.Module, earlier: Model, name: str, exclude: Sequence[str] = ()) -> None:
    """Copy the earlier weights whose key and shape the new network has, except the keys in ``exclude``."""
    own = network.state_dict()
    matching = {key: tensor.float() for key, tensor in earlier.tensors(name).items()
                if key not in exclude and key in own and own[key].shape == tensor.shape}
    network.load_state_dict({**own, **matching})


def start_clvp(model: CLVPInTraining, earlier: Model) -> None:
    """Copy all but the embeddings of codes, which have a new meaning."""
    copy_matching_weights(model.network, earlier, "clvp", ("speech_emb.weight",))


def start_denoiser(model: DenoiserInTraining, earlier: Model, voices: Sequence[str]) -> None:
    copy_matching_weights(model.network, earlier, "diffusion")
    with torch.no_grad():
        model.voices.copy_(earlier_latents(earlier, voices)[1])


def start_decoder(model: DecoderInTraining, earlier: Model, voices: Sequence[str], quantiser: Quantiser,
                  texts: Sequence[str]) -> None:
    """Copy weights and voice latents; rows of ``CODE_KEYS`` are means of earlier rows, see ``code_weights``."""
    copy_matching_weights(model.network, earlier, "autoregressive", CODE_KEYS)
    old, new = earlier.config("autoregressive"), model.config
    assert isinstance(old, UnifiedVoiceConfig)
    weights = code_weights(earlier, voices, quantiser, texts[:SENTENCES])
    tensors, own = earlier.tensors("autoregressive"), dict(model.network.named_parameters())
    with torch.no_grad():
        model.voices.copy_(earlier_latents(earlier, voices)[0])
        for key in CODE_KEYS:
            before = tensors[key].float().cpu()
            own[key][:new.calm_token] = torch.tensordot(weights, before[:old.calm_token], dims=1)
            for name in ("calm_token", "start_mel_token", "stop_mel_token"):
                own[key][getattr(new, name)] = before[getattr(old, name)]


def earlier_latents(earlier: Model, voices: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Latents of the earlier voices: for the decoder (voices, D), for the denoiser (voices, 2C)."""
    loaded = [load_voice(earlier.voices / f"{name}.safetensors", name) for name in voices]
    return (torch.from_numpy(np.concatenate([voice.ar for voice in loaded])),
            torch.from_numpy(np.concatenate([voice.diffusion for voice in loaded])))


def code_weights(earlier: Model, voices: Sequence[str], quantiser: Quantiser, texts: Sequence[str]) -> Tensor:
    """(new codes, earlier codes) float32: weights of the earlier codes in each new one. Each row sums to 1."""
    config, backend = earlier.config("autoregressive"), TorchBackend(earlier, "cpu")
    tokenizer, settings = Tokenizer(earlier.tokenizer), Settings.of(model=earlier.settings)
    counts = torch.zeros(len(quantiser.codebook), config.calm_token)
    for index, name in enumerate(voices):
        voice = load_voice(earlier.voices / f"{name}.safetensors", name)
        chunks = [Prompt(voice.ar, text_tokens(tokenizer.encode(text), config),
                        [InverseCdfSampler(np.random.default_rng([index, number]))])
                  for number, text in enumerate(texts)]
        for [candidate] in decode(backend, chunks, config, settings.sampling, LANES, rewrite_tail=False):
            audio = resample(hifigan_sound(backend, voice.ar, candidate.hidden), SAMPLE_RATE, RATE)
            mel = torch.from_numpy(code_mel(audio, earlier.mel_norms))[None]
            with torch.no_grad():
                new = quantiser.codes(mel, torch.tensor([index]))[0]
            old = torch.from_numpy(np.asarray(candidate.codes, dtype=np.int64))
            length = min(len(new), len(old))
            spoken = old[:length] < config.calm_token
            counts.index_put_((new[:length][spoken], old[:length][spoken]), torch.ones(int(spoken.sum())),
                              accumulate=True)
    total = counts.sum(dim=0)
    counts += PRIOR_WEIGHT * total / total.sum()
    return counts / counts.sum(dim=1, keepdim=True)
