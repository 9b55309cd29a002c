"""What Jain & Wallace published of the sentiment treebank and of bAbI's first task; numbers of their repository.

Divergences are read off the histograms in their figures (bins of 0.0175 nats): two decimals at most. Of bAbI's second
and third task their repository keeps no such files.
"""

from typing import NamedTuple

Numbers = dict[str, float]


class Cell(NamedTuple):
    """One classifier; by predicted class, "all" being all texts.

    Attributes:
        accuracy: on the test texts.
        auc: area under the ROC curve; None for questions.
        tau_gradient: mean Kendall's τ of attention with gradients.
        tau_leave_one_out: of attention with leave-one-out.
        tau_both: of gradients with leave-one-out, over all texts.
        jsd: median ε-max JSD, nats.
        above_half: share of texts whose ε-max JSD is above 0.5.
    """

    accuracy: float
    auc: float | None
    tau_gradient: Numbers
    tau_leave_one_out: Numbers
    tau_both: float
    jsd: Numbers
    above_half: Numbers


def _sst(accuracy: float, auc: float, gradient: tuple[float, ...], left_out: tuple[float, ...], both: float,
         jsd: tuple[float, ...], half: tuple[float, ...]) -> Cell:  # fmt: skip
    names: tuple[str, ...] = ("0", "1", "all")
    tables: list[Numbers] = []
    for values in (gradient, left_out, jsd, half):
        tables.append(dict(zip(names, values, strict=False)))
    return Cell(accuracy, auc, tables[0], tables[1], both, tables[2], tables[3])


def _babi(accuracy: float, gradient: float, left_out: float, both: float, jsd: float, half: float) -> Cell:
    return Cell(accuracy, None, {"all": gradient}, {"all": left_out}, both, {"all": jsd}, {"all": half})


PUBLISHED: dict[tuple[str, str, str], Cell] = {
    ("sst", "lstm", "tanh"): _sst(.808, .902, (.343, .364, .351), (.272, .323, .291), .656, (.50, .50), (.44, .47)),
    ("sst", "lstm", "dot"): _sst(.823, .900, (.085, .060, .073), (.055, .074, .064), .708, (.48, .48), (.41, .41)),
    ("sst", "cnn", "tanh"): _sst(.823, .908, (.478, .476, .477), (.338, .365, .352), .488, (.45, .53), (.28, .63)),
    ("sst", "cnn", "dot"): _sst(.812, .895, (.202, .284, .240), (.204, .228, .215), .636, (.45, .43), (.23, .23)),
    ("sst", "average", "tanh"): _sst(.807, .895, (.611, .600, .606), (.606, .642, .623), .558, (.48, .50), (.35, .45)),
    ("sst", "average", "dot"): _sst(.799, .896, (.390, .283, .347), (.330, .290, .314), .661, (.45, .45), (.23, .20)),
    ("babi-1", "lstm", "tanh"): _babi(1.0, .251, .160, .499, .53, .53),
    ("babi-1", "lstm", "dot"): _babi(.998, .437, .422, .413, .53, .65),
    ("babi-1", "cnn", "tanh"): _babi(.887, .245, .160, .304, .48, .40),
    ("babi-1", "average", "tanh"): _babi(.436, .717, .735, .691, .38, .06),
}  # fmt: skip

PERMUTATION: dict[str, tuple[float, ...]] = {"0": (0.027, 0.047, 0.079, 0.107), "1": (0.032, 0.035, 0.062)}
"""Median change over permutations for SST, BiLSTM, tanh, by predicted class and largest weight, in bins of 0.25."""
