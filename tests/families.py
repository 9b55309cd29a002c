"""Tiny transformers models with random weights, one of every family that the project speaks of."""

from __future__ import annotations

import torch
import transformers as hf

COMMON = {"vocab_size": 97, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LLAMA_LIKE = COMMON | {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
}  # fmt: skip
BERT_LIKE = COMMON | {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 128,
}  # fmt: skip
BART_LIKE = COMMON | {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 128,
    "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip

FAMILIES = {
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**COMMON, n_embd=48, n_layer=3, n_head=6, n_positions=128)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA_LIKE)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**LLAMA_LIKE, sliding_window=7)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(
        **LLAMA_LIKE, sliding_window=7, query_pre_attn_scalar=8, attn_logit_softcapping=5.0)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**LLAMA_LIKE, sliding_window=7, query_pre_attn_scalar=8)),
    "gpt_neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**BERT_LIKE)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**LLAMA_LIKE)),
    "gpt_oss": lambda: hf.GptOssForCausalLM(hf.GptOssConfig(
        **LLAMA_LIKE, num_local_experts=4, num_experts_per_tok=2, sliding_window=8)),
    "opt": lambda: hf.OPTForCausalLM(hf.OPTConfig(
        **COMMON, hidden_size=48, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128,
        word_embed_proj_dim=48)),
    "gptj": lambda: hf.GPTJForCausalLM(hf.GPTJConfig(**COMMON, n_embd=48, n_layer=2, n_head=4, rotary_dim=8, n_positions=128)),
    "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(**COMMON, hidden_size=48, n_layer=2, n_head=4)),
    "falcon": lambda: hf.FalconForCausalLM(hf.FalconConfig(
        **COMMON, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2, new_decoder_architecture=True)),
    "mpt": lambda: hf.MptForCausalLM(hf.MptConfig(**COMMON, d_model=48, n_layers=2, n_heads=4, max_seq_len=128)),
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(
        **COMMON, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0)),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**BART_LIKE)),
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**BERT_LIKE)),
    "distilbert": lambda: hf.DistilBertForMaskedLM(hf.DistilBertConfig(
        **COMMON, dim=48, hidden_dim=64, n_layers=2, n_heads=4, max_position_embeddings=128)),
    "vit": lambda: hf.ViTModel(hf.ViTConfig(
        hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4)),
}  # fmt: skip


def make(family: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> hf.PreTrainedModel:
    """A tiny model of a family. Weights are larger than at initialisation, so that attention is far from uniform."""
    torch.manual_seed(seed)
    model = FAMILIES[family]().eval().to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2 and "norm" not in name:
                parameter.mul_(4.0)
    return model
