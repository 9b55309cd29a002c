"""What each head attends to: to what kinds of token, at which distances, along which relations, and how sure that is.

The measures of Clark et al. 2019, Voita et al. 2019, Kovaleva et al. 2019, Kobayashi et al. 2020, Gu et al. 2025 and
Elhage et al. 2021, with chance levels, controls and intervals. docs/head-specialization.md says how each number comes
about.
"""

from analyses.head_specialization.config import Config
from analyses.head_specialization.schemas import SCHEMAS

__all__ = ["MEMORY_SETTINGS", "SCHEMAS", "Config"]

MEMORY_SETTINGS = ("tokens_per_pass",)
