"""Pruning: models from which heads were cut out, saved and loaded again; see docs/pruning.md."""

from interp.models.pruning.cutting import PruningError, prune
from interp.models.pruning.heads import Head, Kept, kept_after, kept_by_site, parse_heads
from interp.models.pruning.loading import load_base
from interp.models.pruning.plain import Counts, possible_counts, save_plain
from interp.models.pruning.selection import keep_in_each_layer, keep_share, keep_uniform, scores_of
from interp.models.pruning.storage import save_pruned

__all__ = [
    "Counts", "Head", "Kept", "PruningError", "keep_in_each_layer", "keep_share", "keep_uniform", "kept_after",
    "kept_by_site", "load_base", "parse_heads", "possible_counts", "prune", "save_plain", "save_pruned", "scores_of",
]  # fmt: skip
