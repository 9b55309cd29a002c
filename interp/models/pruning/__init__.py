"""Pruning: models from which heads were cut out, saved and loaded again; see docs/pruning.md."""

from interp.models.pruning.cutting import PruningError, prune
from interp.models.pruning.heads import Head, Kept, kept_after, kept_by_site, parse_heads
from interp.models.pruning.loading import load_base
from interp.models.pruning.storage import save_pruned

__all__ = [
    "Head", "Kept", "PruningError", "kept_after", "kept_by_site", "load_base", "parse_heads", "prune", "save_pruned",
]  # fmt: skip
