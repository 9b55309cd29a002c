"""What reads a text: one vector a word, and one for the whole. Padding changes neither."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.models.classifiers.config import KERNELS, ClassifierConfig

Hidden = Float[Tensor, "batch position d_encoded"]
Whole = Float[Tensor, "batch d_encoded"]


class BiLSTM(nn.Module):
    """A bidirectional LSTM; the whole is the last state of either direction."""

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.rnn = nn.LSTM(config.d_embed, config.d_hidden, batch_first=True, bidirectional=True)

    def forward(
        self, embedded: Float[Tensor, "batch position d_embed"], lengths: Int[Tensor, " batch"]
    ) -> tuple[Hidden, Whole]:
        """Hidden states, zero at padding, and the whole."""
        packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths.cpu(), batch_first=True, enforce_sorted=False)
        output, (last, _) = self.rnn(packed)
        hidden, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=embedded.shape[1])
        return hidden, torch.cat([last[0], last[1]], dim=-1)


class Convolutions(nn.Module):
    """Convolutions of several widths with ReLU; the whole is the maximum over positions."""

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        width = config.d_hidden // len(KERNELS)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.d_embed, width, kernel, padding=(kernel - 1) // 2) for kernel in KERNELS
        )

    def forward(
        self, embedded: Float[Tensor, "batch position d_embed"], lengths: Int[Tensor, " batch"]
    ) -> tuple[Hidden, Whole]:
        """Hidden states, zero at padding, and the whole. Words at the edge see zeros, as a text alone does."""
        turned = embedded.transpose(1, 2)
        hidden = torch.cat([convolution(turned) for convolution in self.convolutions], dim=1).relu().transpose(1, 2)
        hidden = hidden * _is_real(lengths, embedded.shape[1])
        return hidden, hidden.amax(1)  # ReLU's zero is the least there is, so that padding is never the maximum


class EachWord(nn.Module):
    """A linear layer and tanh on each word by itself; the whole is the mean over positions."""

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.projection = nn.Linear(config.d_embed, config.d_hidden)

    def forward(
        self, embedded: Float[Tensor, "batch position d_embed"], lengths: Int[Tensor, " batch"]
    ) -> tuple[Hidden, Whole]:
        """Hidden states, zero at padding, and the whole."""
        hidden = self.projection(embedded).tanh() * _is_real(lengths, embedded.shape[1])
        return hidden, hidden.sum(1) / lengths[:, None]


ENCODERS = {"lstm": BiLSTM, "cnn": Convolutions, "average": EachWord}


def _is_real(lengths: Int[Tensor, " batch"], width: int) -> Float[Tensor, "batch position 1"]:
    return (torch.arange(width, device=lengths.device) < lengths[:, None])[..., None].float()
