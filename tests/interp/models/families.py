"""Tiny random models of many families, with every parameter random (norms and biases too, so that none hides)."""

from typing import Any

import torch
import transformers
from torch import nn

VOCABULARY = 97
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64} | _TOKENS
_DECODER = _SIZES | _TOKENS
_GROUPED = _DECODER | {"num_key_value_heads": 2}
_WIDE = _GROUPED | {"head_dim": 12}  # heads · d_head is not d_model
_FALCON = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4} | _TOKENS
_BART = {
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
} | _TOKENS
_VISION = {
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

_FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _WIDE),
    "mistral": ("MistralForCausalLM", "MistralConfig", _WIDE),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", _WIDE),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", _WIDE),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _DECODER),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _WIDE),
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig", _WIDE | _GPT_OSS),
    "opt": ("OPTForCausalLM", "OPTConfig", _DECODER | {"ffn_dim": 40, "word_embed_proj_dim": 32}),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", _GPT | {"rotary_dim": 4}),
    "gpt_neo": ("GPTNeoForCausalLM", "GPTNeoConfig", _DECODER | _NEO),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", _GPT),
    "bloom": ("BloomForCausalLM", "BloomConfig", _FALCON | {"n_layer": 2, "n_head": 4}),
    "falcon_grouped": (
        "FalconForCausalLM",
        "FalconConfig",
        _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    ),
    "falcon_multi_query": ("FalconForCausalLM", "FalconConfig", _FALCON),
    "falcon_alibi": (
        "FalconForCausalLM",
        "FalconConfig",
        _FALCON | {"multi_query": False, "alibi": True, "bias": True},
    ),
    "mpt": (
        "MptForCausalLM",
        "MptConfig",
        {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    ),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", _GROUPED),
    "phi": ("PhiForCausalLM", "PhiConfig", _DECODER),
    "cohere": ("CohereForCausalLM", "CohereConfig", _GROUPED),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", _GROUPED),
    "granite": ("GraniteForCausalLM", "GraniteConfig", _GROUPED | _GRANITE),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 12, "d_ff": 40, "num_layers": 2, "num_heads": 4}
        | {"decoder_start_token_id": 0},
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", _BART),
    "bert": ("BertForMaskedLM", "BertConfig", _SIZES),
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
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig", _DECODER | {"cls_token_id": 1, "sep_token_id": 2}),
    "vit": ("ViTForImageClassification", "ViTConfig", _VISION),
}

NAMES = tuple(_FAMILIES)


def tiny(family: str, seed: int = 0, dtype: torch.dtype | None = None, **changed: Any) -> Any:
    """A tiny random model of a family, in eval mode; in float64 where it can be (mixtures of experts cannot)."""
    dtype = dtype or (torch.float32 if family == "gpt_oss" else torch.float64)
    kind, config, sizes = _FAMILIES[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, kind)(getattr(transformers, config)(**sizes | changed))
    return randomised(model, seed).to(dtype).eval()


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Add noise to every parameter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model


def inputs(model: Any, seed: int = 0) -> dict[str, torch.Tensor]:
    """Two sequences of seven tokens, or two images."""
    generator = torch.Generator().manual_seed(seed)
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator).to(model.dtype)}
    tokens = torch.randint(3, VOCABULARY, (2, 7), generator=generator)
    if not model.config.is_encoder_decoder:
        return {"input_ids": tokens}
    return {"input_ids": tokens, "decoder_input_ids": tokens.flip(1)[:, :5]}
