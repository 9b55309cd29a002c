"""A small transformer in which every design choice is an option, and every part can be read and changed.

config.py       TransformerConfig: the options
model.py        Transformer: embedding, blocks, unembedding, hook points
attention.py    one attention layer and its cache; Cache
linear.py       linear attention: features, prefix sums, rows on demand
positions.py    sinusoidal, rotary, ALiBi
mlp.py          MLP, mixture of experts, load-balancing loss
hooking.py      hook_transformer: as a HookedModel
storage.py      as a folder of config.json and model.safetensors
"""

from interp.models.transformer.attention import Cache
from interp.models.transformer.config import TransformerConfig
from interp.models.transformer.hooking import hook_transformer
from interp.models.transformer.model import Transformer, TransformerOutput
from interp.models.transformer.storage import is_transformer, load_transformer, save_transformer

__all__ = [
    "Cache",
    "Transformer",
    "TransformerConfig",
    "TransformerOutput",
    "hook_transformer",
    "is_transformer",
    "load_transformer",
    "save_transformer",
]
