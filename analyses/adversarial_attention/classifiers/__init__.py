"""Classifiers with one layer of attention, and what is asked of it."""

from typing import Any

import pandas as pd
import torch

from analyses.adversarial_attention.config import Config
from interp.results import Workspace

__all__ = ["tables"]


def tables(config: Config, work: Workspace, device: torch.device) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """All tables of this part, and what the texts were."""
    raise NotImplementedError
