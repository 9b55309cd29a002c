"""Pruning: models from which heads were cut out, saved and loaded again; see docs/pruning.md."""

from interp.models.pruning.cutting import PruningError, prune
from interp.models.pruning.heads import Head, Kept, kept_after, kept_by_site, parse_heads

__all__ = ["Head", "Kept", "PruningError", "kept_after", "kept_by_site", "parse_heads", "prune"]
