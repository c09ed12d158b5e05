"""Write golden vectors for other network sizes, to test that `pytest tests/parity --families DIR` reads all sizes.

    python -m tools.families DIR [--seed 1]

FastSpeech and Whisper get other widths, depths, numbers of heads and lengths, and random weights drawn with the seed.
This project's own float32 networks compute the tensors, so the vectors do not show that it agrees with upstream.
KittenTTS's vectors are copied, and so are all vectors that do not depend on a size.
"""

import argparse
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_tensors

from ane.backends.torch.backend import TorchBackend
from ane.backends.torch.decoder import TorchDecoder
from ane.models.durations import alignment_matrix, durations, length_mask, repeats
from ane.models.fastspeech.networks import FastSpeech, FastSpeechConfig
from ane.models.whisper.decoding import WindowDecoder, WindowText
from ane.models.whisper.networks import WhisperDecoder, WhisperDecoderConfig, WhisperEncoder, WhisperEncoderConfig
from ane.models.whisper.tokens import SpecialTokens
from converters.proof.activations import hooked
from tests.conftest import FAMILIES
from tests.fastspeech_files import fastspeech_entries
from tests.models.whisper.random_whisper import RandomSizes, hugging_face_name, random_tensors
from tests.parity import test_fastspeech as speech
from tests.parity.conftest import golden_facts
from tests.parity.whisper_golden import PREFIXES, columns, decoding_options, open_golden_whisper, uncached

Tensors = dict[str, np.ndarray]
FASTSPEECH = {
    "max_seq_len": 320,
    "d_model": 48,
    "phoneme_side_output_size": 48,
    "mel_side_output_size": 48,
    "phoneme_side_n_layer": 3,
    "phoneme_side_head": 1,
    "mel_side_n_layer": 1,
    "mel_side_head": 3,
    "duration_predictor_filter_size": 20,
    "n_mels": 40,
}
FIXED, BUCKETS = {"max_in": 64, "max_out": 300}, [[20, 100], [40, 200], [64, 320]]
WHISPER = {
    "full": RandomSizes(
        n_audio_ctx=1500, n_audio_state=12, n_audio_head=3, n_audio_layer=3, n_text_ctx=96, n_text_state=12,
        n_text_head=3, n_text_layer=1,
    ),
    "short": RandomSizes(n_audio_ctx=50, n_vocab=300, n_text_ctx=30, n_text_layer=3),
}  # fmt: skip
STEPS = {"full": 6, "short": 3}


def write_fastspeech_set(folder: Path) -> None:
    facts, golden = golden_facts(FAMILIES / "fastspeech"), load_file(FAMILIES / "fastspeech" / "stages.safetensors")
    facts["config"] |= FASTSPEECH
    choices = [sum(choice["length"] > size for size, _ in BUCKETS) for choice in facts["bucket_choice"]]
    facts |= {"fixed": FIXED, "buckets": BUCKETS}
    for choice, index in zip(facts["bucket_choice"], choices, strict=True):
        choice["index"] = min(index, len(BUCKETS) - 1)
    config = FastSpeechConfig.from_upstream(facts["config"])
    entries = fastspeech_entries(config)
    entries["length_regulator.duration_predictor.linear_layer.weight"] *= 3
    save_tensors(entries, folder / "weights.safetensors")
    network = FastSpeech(replace(config, padding="published")).eval().requires_grad_(False)
    network.load_state_dict({key: value for key, value in entries.items() if not key.endswith("position.weight")})
    texts = sorted((np.array(pair["ids"], np.int32) for pair in facts["text"]), key=len)
    texts = [ids for ids in texts if len(ids) <= 70]
    single, batch = next(ids for ids in texts if len(ids) > 15)[None], np.zeros((2, len(texts[-1])), np.int32)
    for row, ids in enumerate((texts[-1], texts[len(texts) // 2])):
        batch[row, : len(ids)] = ids
    fixed = np.pad(single, ((0, 0), (0, FIXED["max_in"] - single.shape[1])))
    cases = {name: speech_case(network, name, single) for name in ("single", "fast", "slow", "empty")}
    cases |= {"batch": speech_case(network, "batch", batch), "crop": speech_case(network, "crop", batch[:1], 320)}
    cases["fixed"] = speech_case(network, "fixed", fixed, FIXED["max_out"])
    cases["crop_out"] = speech_case(network, "crop_out", single, 30)
    del cases["fixed"]["pos"]
    tensors = {f"{name}/{key}": value for name, case in cases.items() for key, value in case.items()}
    tensors |= {key: value for key, value in golden.items() if key.startswith("regulator/")}
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, folder / "stages.safetensors")
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def speech_case(network: FastSpeech, name: str, ids: np.ndarray, frames: int | None = None) -> Tensors:
    """Compute the tensors of one case. The mel spectrogram is cut or padded to ``frames``, unless that is ``None``."""
    case: Tensors = {"ids": ids, "pos": (np.arange(1, ids.shape[1] + 1) * (ids > 0)).astype(np.int32)}
    outputs: Tensors = {}
    with hooked({key: part for key, part in network.named_modules() if key}, outputs.__setitem__):
        encoded = speech.encode(network, case)
        case["encoder"], case["log_duration"] = encoded[..., :-1], encoded[..., -1]
        if name == "empty":
            case["log_duration"] = np.full_like(case["log_duration"], -9)
        case["duration"] = durations(case["log_duration"])
        counts = case["repeats"] = repeats(case["duration"], speech.ALPHAS.get(name, 1.0))
        uncut = int(counts.sum(axis=1).max())
        frames = frames or min(uncut, network.config.max_seq_len)
        mask = length_mask(counts.sum(axis=1), uncut)
        case |= {
            "regulated": alignment_matrix(counts, uncut).transpose(0, 2, 1) @ case["encoder"],
            "regulated_pos": mask * np.arange(1, uncut + 1),
            "mel": speech.decode(network, case["encoder"], counts, frames) if frames else np.zeros((1, 0, 1)),
            "mel_mask": length_mask(counts.sum(axis=1), frames)[..., None],
        }
    if name in ("single", "fixed"):
        for key, output in outputs.items():
            if key.endswith(
                ("attention", "linear", "layer_norm", "w_1", "w_2", "conv1d_1", "linear_layer", "word_emb")
            ):
                case[f"{key}/out"] = speech.head_by_head(output) if key.endswith(".attention") else output
        for side in ("phoneme_side", "mel_side"):
            key = f"{side}.layer_stack.0.slf_attn"
            heads, linear = network.get_submodule(key).heads, torch.from_numpy(outputs[f"{key}.linear"])
            q, k, _ = linear.view(len(ids), -1, heads, 3, 64).permute(3, 0, 2, 1, 4)[:, 0]
            case[f"{key}.attention/attn"] = torch.softmax(q @ k.transpose(1, 2) / 8, dim=-1).numpy()
    return case


def write_whisper_set(folder: Path, seed: int) -> None:
    facts, front_end = golden_facts(FAMILIES / "whisper"), FAMILIES / "whisper" / "frontend.safetensors"
    shutil.copy(front_end, folder)
    mel = load_file(FAMILIES / "whisper" / "stages.safetensors")["encoder/mel"]
    for name, sizes in WHISPER.items():
        tensors = random_tensors(sizes, seed)
        save_tensors(
            {hugging_face_name(key): value for key, value in tensors.items()},
            folder / f"{PREFIXES[name]}weights.safetensors",
        )
        upstream = vars(sizes)
        facts[name] = {
            "d": sizes.n_text_state, "h": sizes.n_text_head, "enc": sizes.n_audio_layer, "dec": sizes.n_text_layer,
            "vocab": sizes.n_vocab, "n_mels": sizes.n_mels, "n_audio_ctx": sizes.n_audio_ctx,
            "n_text_ctx": sizes.n_text_ctx,
        }  # fmt: skip
        networks = (
            WhisperEncoder(WhisperEncoderConfig.from_upstream(upstream)),
            WhisperDecoder(WhisperDecoderConfig.from_upstream(upstream)),
        )
        for network, side in zip(networks, ("encoder", "decoder"), strict=True):
            network.load_state_dict(
                {key.removeprefix(f"{side}."): value for key, value in tensors.items() if key.startswith(side)}
            )
            network.eval().requires_grad_(False)
        heard = mel if name == "full" else np.repeat(mel[..., : 2 * sizes.n_audio_ctx], 3, axis=0)
        found = whisper_stages(*networks, heard, STEPS[name], whole=name == "short", seed=seed)
        save_file(found, folder / f"{PREFIXES[name]}stages.safetensors")
    names = random_tensors(WHISPER["full"], seed)
    facts["openai_keys"] = {hugging_face_name(key): key for key in names}
    decode_again(folder, facts, load_file(folder / "stages.safetensors")["encoder/mel"])
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def whisper_stages(
    encoder: WhisperEncoder, decoder: WhisperDecoder, mel: np.ndarray, steps: int, whole: bool, seed: int
) -> Tensors:
    """Compute the outputs of encoder and decoder for a mel and random tokens, and the caches after all steps."""
    rng, rows, config = np.random.default_rng(seed), len(mel), decoder.config
    found: Tensors = {"encoder/mel": np.ascontiguousarray(mel)}
    modules = {"conv2": encoder.conv2, "out": encoder} | {f"layer{i}": block for i, block in enumerate(encoder.blocks)}
    modules["layer0/self_attn"] = encoder.blocks[0].attn.out
    with hooked(modules, lambda key, value: found.__setitem__(f"encoder/{key}", value.copy())):
        encoder(torch.from_numpy(found["encoder/mel"]))
    start, new = 7, rng.integers(0, config.n_vocab, (rows, 7 + steps)).astype(np.int32)
    found["decoder/tokens"], found["steps/tokens"] = new[:, :start].copy(), new[:, start:].copy()
    modules = {"hidden": decoder}
    for index, block in enumerate(decoder.blocks):
        modules |= {
            f"layer{index}": block,
            f"layer{index}/self_attn": block.attn.out,
            f"layer{index}/encoder_attn": block.cross_attn.out,
        }
    with hooked(modules, lambda key, value: found.__setitem__(f"decoder/{key}", value.copy())):
        uncached(decoder, found["decoder/tokens"], found["encoder/out"])
    every = uncached(decoder, new, found["encoder/out"])
    found["steps/hidden"] = every[:, start:].numpy().copy()
    logits = decoder.logits(every).numpy()
    for call, part in (("decoder", logits[:, :start]), ("steps", logits[:, start:])):
        best = np.argsort(-part, axis=-1)[..., :8]
        found |= (
            {f"{call}/logits": part.copy()}
            if whole
            else {
                f"{call}/logits_last": part[:, -1].copy(),
                f"{call}/logits_top_ids": best.astype(np.int32),
                f"{call}/logits_top_values": np.take_along_axis(part, best, axis=-1),
            }
        )
    cache = TorchDecoder(decoder, 1, 1, torch.device("cpu"), torch.float32, 1, new.shape[1])
    self_caches, cross = [], []
    for row in range(rows):
        cache.set_memory(found["encoder/out"][row], 0)
        cache.prefill(columns(decoder, new[row : row + 1])[0], 0)
        length = new.shape[1]
        self_caches.append((cache.prefix_keys[:, :, :, :length].clone(), cache.prefix_values[:, :, :, :length].clone()))
        cross.append((cache.memory_keys.clone(), cache.memory_values.clone()))
    for layer in range(config.n_text_layer):
        for index, name in enumerate(("key", "value")):
            found[f"steps/cache/self/{layer}/{name}"] = torch.cat([part[index][layer] for part in self_caches]).numpy()
            found[f"cache/cross/{layer}/{name}"] = torch.cat([part[index][layer] for part in cross]).numpy()
    return found


def decode_again(folder: Path, facts: dict[str, Any], mel: np.ndarray) -> None:
    """Replace the decoded tokens and the language in ``facts`` with the results of the new weights."""
    work = folder / "work"
    work.mkdir()
    model = open_golden_whisper(folder, facts, work)
    backend = TorchBackend(model, "cpu", "fp32")
    decoder = WindowDecoder(backend, model.config("decoder"), SpecialTokens.of(facts["n_vocab"]), candidates=3)
    decoder.set_states(backend.run("encoder", mel=mel))
    for case in facts["decode"]:
        text = WindowText(tuple(case["options"].get("prompt", ())), tuple(case["options"].get("prefix", ())))
        found = decoder.decode(text, decoding_options(facts, case))
        case |= {
            "tokens": list(found.tokens),
            "avg_logprob": found.average_log_probability,
            "no_speech_prob": found.no_speech_probability,
        }
    languages = decoder.language_probabilities()
    facts["detect_language"] = {"best": next(iter(languages)), "prob_en": languages["en"]}
    shutil.rmtree(work)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.families", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder to create for the vectors")
    parser.add_argument("--seed", type=int, default=1, help="seed of Whisper's weights and tokens (default: 1)")
    options = parser.parse_args()
    for name in ("fastspeech", "whisper"):
        (options.folder / name).mkdir(parents=True)
    with torch.inference_mode():
        write_fastspeech_set(options.folder / "fastspeech")
        write_whisper_set(options.folder / "whisper", options.seed)
    shutil.copytree(FAMILIES / "kitten", options.folder / "kitten")
    return 0


if __name__ == "__main__":
    sys.exit(main())
