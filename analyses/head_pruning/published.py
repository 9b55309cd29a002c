"""Published numbers of head pruning: Michel et al. 2019 (arXiv:1905.10650), Voita et al. 2019 (arXiv:1905.09418).

Where a classifier is given, `reproduce_michel` measures the same quantity on it. The others are of translation models
(BLEU), for which there are neither checkpoints that install nor references here; they are printed with what they need.
"""

from dataclasses import dataclass
from typing import Literal

Paper = Literal["Michel", "Voita"]
_WMT = "a transformer trained on WMT14 en–fr (big, 6 layers of 16 heads) and newstest references"
_RUSSIAN = "a transformer trained on WMT en–ru (6 layers of 8 heads) and references"
_SUBTITLES = "a transformer trained on OpenSubtitles en–ru and references"


@dataclass(frozen=True)
class Published:
    """A number of a paper that no classifier can be compared with.

    Attributes:
        quantity: what it is. value: as printed. needs: the model and data that it takes.
    """

    paper: Paper
    quantity: str
    value: str
    needs: str


#: Of BERT-base on MNLI, or as said; what is measured beside them is measured on the classifier that is given.
PRUNABLE = {"MNLI": 0.40, "SST-2": 0.60, "CoLA": 0.50, "MRPC": 0.50}
BEST_HEAD_ALONE = (-0.01, 0.10, -0.14, -0.53, -0.29, -0.52, 0.05, -0.72, -0.96, 0.07, -0.19, -0.12)
R_BETWEEN_DATA = 0.68
SPEED_UP = {1: 0.019, 64: 0.175}
SURE_HEADS = "8 of 96, 4 of them better without (WMT encoder, BLEU)"
BEATS_ABLATION = "importance's curve lies above (WMT, MNLI; a figure)"
GATES = "10 of 48: −0.15 BLEU (WMT en–ru); 4 of 48: −0.25 BLEU (OpenSubtitles)"

ELSEWHERE = (
    Published("Michel", "BLEU of the whole model", "36.05", _WMT),
    Published("Michel", "share of heads that goes without a noticeable fall", "0.2", _WMT),
    Published("Michel", "single heads that hurt most (layer, head from 1), BLEU",
              "L1H6 −0.53, L1H8 −0.33, L5H1 −0.31, L6H3 −0.31", _WMT),
    Published("Michel", "single heads better gone, BLEU", "L3H14 +0.24, L5H10 +0.21, L2H4 +0.20, L2H11 +0.15", _WMT),
    Published("Michel", "best head alone, encoder, layers 1 to 6, BLEU", "−1.31, −0.16, +0.12, −0.15, +0.02, −0.36",
              _WMT),
    Published("Michel", "best head alone, cross, layers 1 to 6, BLEU", "+0.24, +0.06, +0.05, −0.24, −1.55, −13.56",
              _WMT),
    Published("Michel", "best head alone, decoder, layers 1 to 6, BLEU", "−0.03, +0.12, +0.18, +0.17, −0.04, +0.24",
              _WMT),
    Published("Michel", "r of single heads' effects between two kinds of text", "0.56", _WMT),
    Published("Voita", "gates on the encoder, 17 of 48 heads left", "every function of heads kept", _RUSSIAN),
    Published("Voita", "gates on all attention, encoder/decoder/cross heads left: BLEU (the same from scratch)",
              "48/48/48: 29.6; 14/31/30: 29.62 (29.47); 12/21/25: 29.36 (28.95); 8/13/15: 29.06 (28.56); "
              "5/9/12: 28.90 (28.41)", _RUSSIAN),
    Published("Voita", "the same on subtitles",
              "48/48/48: 32.4; 27/31/46: 32.24 (32.23); 13/17/31: 32.23 (31.98); 6/9/13: 32.27 (31.84)", _SUBTITLES),
)  # fmt: skip
