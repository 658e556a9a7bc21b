"""Chapter 8's recurrent translators: those of chapter 2 with LSTMs, which read a known target in
one call."""
import torch
from torch import Tensor, nn

from tfmlib.alignment import (
    FixedContextDecoder,
    GRUEncoder,
    LuongDecoder,
    MultiplicativeScore,
    Seq2Seq,
    final_state,
)
from tfmlib.attention import masked_softmax


class Reader(GRUEncoder):
    "Chapter 2's encoder: two LSTMs, one from each side."
    def __init__(self, vocabulary: int, width: int):
        super().__init__(vocabulary, width)
        self.gru = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)


class Writer(nn.Module):
    "What the two decoders share; goes before one of chapter 2's, whose cell it replaces."
    def __init__(self, *given):
        super().__init__(*given)
        self.cell = nn.LSTM(self.cell.input_size, self.cell.hidden_size, batch_first=True)

    def initial_state(self, h: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:  # (B, S, C), (B, S)
        "Output and cell before the first word."
        cell = self.to_state(final_state(h, mask))
        return cell.tanh()[None], cell[None]                           # (1, B, C)

    # (B,): one word, when a translation is written
    def forward(self, word: Tensor, s: tuple, source) -> tuple:
        scores, s, weights = self.all(word[:, None], s, source)
        return scores[:, 0], s, None if weights is None else weights[:, 0]


class OneVector(Writer, FixedContextDecoder):
    "Sees the source as one vector, the same at every step."
    def all(self, y: Tensor, s: tuple, c: Tensor) -> tuple:            # (B, T), state, (B, C)
        c = c[:, None].expand(-1, y.shape[1], -1)
        states, s = self.cell(torch.cat([self.embedding(y), c], -1), s)
        return self.logits(states, c), s, None                         # (B, T, V)


class Attentive(Writer, LuongDecoder):
    """Moves first; then looks, with the state it has just made. The states do not need the
    looks, so all come from one call."""
    # (B, T), state, what `begin` gave
    def all(self, y: Tensor, s: tuple, source: tuple) -> tuple:
        h, keys, mask = source
        states, s = self.cell(self.embedding(y), s)                    # (B, T, C)
        weights = masked_softmax(states @ keys.mT, mask[:, None])      # (B, T, S)
        return self.logits(states, weights @ h), s, weights


class AtOnce(Seq2Seq):
    "A translator that scores a known target in one call."
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        scores, _, weights = self.decoder.all(y, *self.begin(x))
        return scores, weights


def one_vector(source: int, target: int, width: int) -> AtOnce:
    "An LSTM that hands its decoder one vector."
    return AtOnce(Reader(source, width), OneVector(target, width))


def attentive(source: int, target: int, width: int) -> AtOnce:
    "An LSTM with Luong's attention."
    return AtOnce(Reader(source, width), Attentive(target, width, MultiplicativeScore(width)))
