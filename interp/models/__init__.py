"""Models that the attention core sits inside of: found, loaded, hooked, and what their weights say head by head."""

from interp.models.hooked import HookedModel, NeverReachedError
from interp.models.loading import load
from interp.models.projections import Declaration
from interp.models.recording import Run
from interp.models.sites import AttentionSite

__all__ = ["AttentionSite", "Declaration", "HookedModel", "NeverReachedError", "Run", "load"]
