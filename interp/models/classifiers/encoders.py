"""What reads a text: one vector a word, and one for the whole. Padding changes neither."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.models.classifiers.config import KERNELS, ClassifierConfig

Hidden = Float[Tensor, "batch position d_encoded"]
Whole = Float[Tensor, "batch d_encoded"]


class BiLSTM(nn.Module):
    """A bidirectional LSTM; the whole is the last state of either direction.

    Each direction is a pass over padded texts, the second over texts turned round: what comes after a text's end then
    reaches none of its words, and PyTorch's fused layers apply, which packed sequences have not on the processor (1.6
    to 6.7 times slower in training, by sizes).
    """

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.rnn = nn.LSTM(config.d_embed, config.d_hidden, batch_first=True, bidirectional=True)

    def forward(
        self, embedded: Float[Tensor, "batch position d_embed"], lengths: Int[Tensor, " batch"]
    ) -> tuple[Hidden, Whole]:
        """Hidden states, zero at padding, and the whole."""
        width = embedded.shape[1]
        turned = _turned(lengths, width)
        forward = self._direction(embedded, "")
        backward = self._direction(_picked(embedded, turned), "_reverse")
        whole = _picked(torch.cat([forward, backward], dim=-1), lengths[:, None] - 1)[:, 0]
        hidden = torch.cat([forward, _picked(backward, turned)], dim=-1)
        return hidden * _is_real(lengths, width), whole

    def _direction(self, embedded: Tensor, which: str) -> Tensor:
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        weights = [getattr(self.rnn, f"{name}{which}") for name in names]
        begin = embedded.new_zeros(1, len(embedded), self.rnn.hidden_size)
        hidden, _, _ = torch.lstm(embedded, [begin, begin], weights, True, 1, 0.0, self.training, False, True)
        return hidden


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


def _turned(lengths: Int[Tensor, " batch"], width: int) -> Int[Tensor, "batch position"]:
    """Places of each text's tokens read from its end; its padding stays where it is."""
    position = torch.arange(width, device=lengths.device)
    return torch.where(position < lengths[:, None], lengths[:, None] - 1 - position, position)


def _picked(
    vectors: Float[Tensor, "batch position d"], places: Int[Tensor, "batch place"]
) -> Float[Tensor, "batch place d"]:
    return vectors.gather(1, places[..., None].expand(-1, -1, vectors.shape[-1]))
