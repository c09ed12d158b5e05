"""The stages (named network calls) of Tortoise, which every backend runs.

Dimension names: B batch, T text tokens, S codes, N latents, L mel frames, D width of the decoder, C width of the
diffusion decoder's voice latent (2 × its channels), E width of CLVP, V codes of the vocabulary, Z channels of
UnivNet's noise.
"""

from ane.backends.base import DecoderStage, DenoiserStage, ModelStages, Stage, TensorSpec
from ane.models.tortoise.packaged import (
    bind_denoiser,
    denoiser_conditioning,
    run_clip_encoder,
    run_clvp_speech,
    run_clvp_text,
    run_random_converter,
    run_vocoder,
)

STAGES = {
    # reference audio to voice latents, one clip per row
    "ar_conditioning": Stage("conditioning_encoder", {"mel": TensorSpec(("B", 80, "L"))}, TensorSpec(("B", "D")),
                             packaged=run_clip_encoder),
    "diffusion_conditioning": Stage("contextual_embedder", {"mel": TensorSpec(("B", 100, "L"))}, TensorSpec(("B", "C")),
                                    packaged=run_clip_encoder),
    "ar_random": Stage("rlg_auto", {"noise": TensorSpec(("B", "D"))}, TensorSpec(("B", "D")),
                       packaged=run_random_converter),
    "diffusion_random": Stage("rlg_diffuser", {"noise": TensorSpec(("B", "C"))}, TensorSpec(("B", "C")),
                              packaged=run_random_converter),
    # ranking: a score is the dot product of a text's (or clip's) row with the speech's
    "clvp_text": Stage("clvp", {"tokens": TensorSpec(("B", "T"), "int64")}, TensorSpec(("B", "E")), "text",
                       run_clvp_text),
    "clvp_speech": Stage("clvp", {"codes": TensorSpec(("B", "S"), "int64")}, TensorSpec(("B", "E")), "speech",
                         run_clvp_speech),
    "cvvp_clip": Stage("cvvp", {"mel": TensorSpec(("B", 80, "L"))}, TensorSpec(("B", "E")), "clip"),
    "cvvp_speech": Stage("cvvp", {"codes": TensorSpec(("B", "S"), "int64")}, TensorSpec(("B", "E")), "speech"),
    # vocoders; "frames" are latents interpolated to the rate of mel frames (ane.models.tortoise.vocoding)
    "univnet": Stage("univnet", {"mel": TensorSpec(("B", 100, "L")), "noise": TensorSpec(("B", "Z", "L+10"))},
                     TensorSpec(("B", 1, "256L")), packaged=run_vocoder),
    "bigvgan": Stage("bigvgan", {"mel": TensorSpec(("B", 100, "L"))}, TensorSpec(("B", 1, "256L")),
                     packaged=run_vocoder),
    "hifigan": Stage("hifigan", {"frames": TensorSpec(("B", "D", "L")), "conditioning": TensorSpec(("B", "D"))},
                     TensorSpec(("B", 1, "256L")), packaged=run_vocoder),
    "classifier": Stage("classifier", {"audio": TensorSpec(("B", 1, "samples"))}, TensorSpec(("B", 2))),
}


DECODER = DecoderStage("autoregressive", {
    "text": "text_embedding.weight",
    "text_position": "text_pos_embedding.emb.weight",
    "code": "mel_embedding.weight",
    "code_position": "mel_pos_embedding.emb.weight",
})

DENOISER = DenoiserStage("diffusion", denoiser_conditioning, lambda config: config.out_channels, bind_denoiser)

TORTOISE_STAGES = ModelStages(STAGES, DECODER, DENOISER)
