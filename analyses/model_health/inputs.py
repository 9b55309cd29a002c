"""What attention's statistics are taken on: text where the model has a tokenizer, else random tokens or the example."""

from __future__ import annotations

from dataclasses import replace

from analyses.model_health.config import Config
from analyses.model_health.subject import Subject, subject_of
from interp.model_data import reads_text, text_windows, within_context
from interp.results import Workspace

__all__ = ["read"]


def read(subject: Subject, config: Config, work: Workspace) -> tuple[Subject, str]:
    """The model with such an input, and the name that tables have for it: text, unrepeated or example.

    Raises:
        UserError: a text was asked for that the model cannot read.
    """
    model = subject.model
    if subject.wrapped or "tokens" not in subject.arguments:
        return subject, "example"
    length = within_context(model, config.length)
    if not reads_text(model, config.text):
        work.note("The model came without a tokenizer: attention's statistics are taken on random tokens.")
        return subject_of(model, length, config.n_sequences, config.seed), "unrepeated"
    text = text_windows(model, config.text, length, n=config.n_sequences, seed=config.seed)
    for note in text.notes:
        work.note(f"Text: {note}")
    given = {"tokens": text.tokens}
    if model.is_encoder_decoder:
        given["decoder_tokens"] = text.tokens
    return replace(subject, arguments=given), "text"
