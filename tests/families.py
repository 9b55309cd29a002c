"""Tiny transformers models with random weights, one of every family that the project speaks of."""

from typing import Any

import torch
import transformers
from torch import nn

import interp

hf: Any = transformers  # its configs take what they are given; their types do not say so

TOKENS: dict[str, Any] = {"vocab_size": 97, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT: dict[str, Any] = TOKENS | {"n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 128}
SIZES: dict[str, Any] = TOKENS | {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 128,
}  # fmt: skip
GROUPED: dict[str, Any] = SIZES | {
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
BART: dict[str, Any] = TOKENS | {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 128,
    "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
OWN_NAMES: dict[str, Any] = TOKENS | {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
IMAGES: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 16,
    "patch_size": 4,
}  # fmt: skip

FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "mistral": ("MistralForCausalLM", "MistralConfig", GROUPED | {"sliding_window": 7}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config",
               GROUPED | {"sliding_window": 7, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", GROUPED | {"sliding_window": 7, "query_pre_attn_scalar": 8}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", SIZES),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", GROUPED),
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig",
                GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8,
                           "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "opt": ("OPTForCausalLM", "OPTConfig", SIZES | {"ffn_dim": 64, "word_embed_proj_dim": 48}),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", GPT | {"n_layer": 2, "n_head": 4, "rotary_dim": 8}),
    "bloom": ("BloomForCausalLM", "BloomConfig", OWN_NAMES | {"n_layer": 2, "n_head": 4}),
    "falcon": ("FalconForCausalLM", "FalconConfig", OWN_NAMES | {"num_kv_heads": 2, "new_decoder_architecture": True}),
    "mpt": ("MptForCausalLM", "MptConfig", TOKENS | {"d_model": 48, "n_layers": 2, "n_heads": 4, "max_seq_len": 128}),
    "t5": ("T5ForConditionalGeneration", "T5Config",
           TOKENS | {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
                     "decoder_start_token_id": 0}),
    "bart": ("BartForConditionalGeneration", "BartConfig", BART),
    "bert": ("BertForMaskedLM", "BertConfig", SIZES),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", SIZES | {"pad_token_id": 1, "bos_token_id": 0}),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig",
                   TOKENS | {"dim": 48, "hidden_dim": 64, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 128}),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig",
                   SIZES | {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 6,
                            "global_attn_every_n_layers": 2}),
    "vit": ("ViTModel", "ViTConfig", IMAGES),
}  # fmt: skip
"""Family → classes of model and config in transformers, and the config's arguments."""

DECODERS = ("gpt2", "llama", "mistral", "gemma2", "gemma3", "gpt_neox", "qwen3", "gpt_oss", "opt", "gptj", "bloom",
            "falcon", "mpt")  # fmt: skip
ENCODERS = ("bert", "roberta", "distilbert", "modernbert")
ENCODER_DECODERS = ("t5", "bart")
OWN_SOFTMAX = ("bloom", "falcon", "mpt")
"""Families that compute their own attention."""

WINDOWS = {"mistral": 7, "gemma2": 7, "gemma3": 7, "gpt_oss": 8}


def make(family: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changed: Any) -> Any:
    """A tiny model of a family.

    Every parameter is random, biases and gains of norms too, so that none can be forgotten without a difference, and
    projections are large enough for attention to be far from uniform.

    Args:
        family: a key of :data:`FAMILIES`.
        seed: of the weights.
        dtype: of the weights.
        changed: arguments of the config, in place of those of :data:`FAMILIES`.
    """
    kind, config, arguments = FAMILIES[family]
    model = getattr(hf, kind)(getattr(hf, config)(**arguments | changed))
    return randomised(model, seed).eval().to(dtype)


def load(model: Any, **options: Any) -> Any:
    """:func:`interp.load` without its types, so that a test may reach into the module."""
    return interp.load(model, **options)


def randomised(model: Any, seed: int = 0) -> Any:
    """The model with random parameters: matrices that keep the size of what they multiply, small embeddings, gains
    about what they were, biases of size 0.3."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim < 2 and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(0.3 * noise)  # gains are ones or zeros, biases zeros
            elif parameter.ndim < 2 or "relative_attention_bias" in name:
                parameter.copy_(noise)
            elif any(part in name for part in ("emb", "wte", "wpe", "shared")):
                parameter.copy_(0.2 * noise)
            else:
                parameter.copy_(1.3 * noise / min(parameter.shape[-2:]) ** 0.5)
    return model


def tokens(batch: int = 2, length: int = 13, seed: int = 1) -> torch.Tensor:
    """Random token ids that are no special tokens."""
    return torch.randint(3, 97, (batch, length), generator=torch.Generator().manual_seed(seed))


def example(family: str, batch: int = 2, length: int = 13, seed: int = 1) -> dict[str, Any]:
    """Inputs for :meth:`HookedModel.run`."""
    if family == "vit":
        return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(seed))}
    given = {"tokens": tokens(batch, length, seed)}
    return given | {"decoder_tokens": tokens(batch, length - 4, seed + 1)} if family in ENCODER_DECODERS else given


# The same for what is read of weights: smaller, more families (a name for each way in which weights are laid out), in
# float64, with noise on every parameter, so that none hides behind a one or a zero. ----------------------------------

VOCABULARY = 97
_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SMALL_GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64} | _ENDS
_SMALL_DECODER = _SMALL | _ENDS
_SMALL_GROUPED = _SMALL_DECODER | {"num_key_value_heads": 2}
_SMALL_WIDE = _SMALL_GROUPED | {"head_dim": 12}  # heads · d_head is not d_model
_SMALL_FALCON = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4} | _ENDS
_SMALL_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
} | _ENDS
_SMALL_VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 8,
}
_GPT_OSS = {
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
_GRANITE = {"residual_multiplier": 0.5, "embedding_multiplier": 3.0, "logits_scaling": 2.0}
_NEO = {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}

TINY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _SMALL_GPT),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _SMALL_WIDE),
    "mistral": ("MistralForCausalLM", "MistralConfig", _SMALL_WIDE),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", _SMALL_WIDE),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", _SMALL_WIDE),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _SMALL_DECODER),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _SMALL_GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _SMALL_WIDE),
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig", _SMALL_WIDE | _GPT_OSS),
    "opt": ("OPTForCausalLM", "OPTConfig", _SMALL_DECODER | {"ffn_dim": 40, "word_embed_proj_dim": 32}),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", _SMALL_GPT | {"rotary_dim": 4}),
    "gpt_neo": ("GPTNeoForCausalLM", "GPTNeoConfig", _SMALL_DECODER | _NEO),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", _SMALL_GPT),
    "bloom": ("BloomForCausalLM", "BloomConfig", _SMALL_FALCON | {"n_layer": 2, "n_head": 4}),
    "falcon_grouped": (
        "FalconForCausalLM",
        "FalconConfig",
        _SMALL_FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    ),
    "falcon_multi_query": ("FalconForCausalLM", "FalconConfig", _SMALL_FALCON),
    "falcon_alibi": (
        "FalconForCausalLM",
        "FalconConfig",
        _SMALL_FALCON | {"multi_query": False, "alibi": True, "bias": True},
    ),
    "mpt": (
        "MptForCausalLM",
        "MptConfig",
        {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    ),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", _SMALL_GROUPED),
    "phi": ("PhiForCausalLM", "PhiConfig", _SMALL_DECODER),
    "cohere": ("CohereForCausalLM", "CohereConfig", _SMALL_GROUPED),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", _SMALL_GROUPED),
    "granite": ("GraniteForCausalLM", "GraniteConfig", _SMALL_GROUPED | _GRANITE),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 12, "d_ff": 40, "num_layers": 2, "num_heads": 4}
        | {"decoder_start_token_id": 0},
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", _SMALL_BART),
    "bert": ("BertForMaskedLM", "BertConfig", _SMALL),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {
            "vocab_size": VOCABULARY,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 40,
            "max_position_embeddings": 64,
        },
    ),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        _SMALL_DECODER | {"cls_token_id": 1, "sep_token_id": 2},
    ),
    "vit": ("ViTForImageClassification", "ViTConfig", _SMALL_VISION),
}

TINY_NAMES = tuple(TINY)


def tiny(family: str, seed: int = 0, dtype: torch.dtype | None = None, **changed: Any) -> Any:
    """A tiny random model of a family, in eval mode; in float64 where it can be (mixtures of experts cannot)."""
    dtype = dtype or (torch.float32 if family == "gpt_oss" else torch.float64)
    kind, config, sizes = TINY[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, kind)(getattr(transformers, config)(**sizes | changed))
    return noised(model, seed).to(dtype).eval()


def noised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Add noise to every parameter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model


def tiny_inputs(model: Any, seed: int = 0) -> dict[str, torch.Tensor]:
    """Two sequences of seven tokens, or two images."""
    generator = torch.Generator().manual_seed(seed)
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator).to(model.dtype)}
    tokens = torch.randint(3, VOCABULARY, (2, 7), generator=generator)
    if not model.config.is_encoder_decoder:
        return {"input_ids": tokens}
    return {"input_ids": tokens, "decoder_input_ids": tokens.flip(1)[:, :5]}
