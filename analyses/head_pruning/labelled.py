"""Labelled texts as batches with their metrics, and a text classifier whose head may have to be fitted."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from interp import HookedModel, UserError
from interp.ablation import Batch
from interp.models.checkpoints import Checkpoint


@dataclass(frozen=True)
class Cut:
    """How texts become batches.

    Attributes:
        length: tokens that a text is cut to. batch_size: texts of a pass.
    """

    length: int = 128
    batch_size: int = 32


class Labelled:
    """Labelled texts as batches, and the metrics that know their labels.

    Texts are sorted by their numbers of tokens, so that those of a batch are (nearly) equally long and little is
    computed for padding. Metrics see batches and no labels, so that the label of a sequence is found by its tokens.

    Raises UserError where two texts with different labels are the same tokens.

    Attributes:
        batches: arguments of `HookedModel.run`; ``valid`` only where a batch has padding.
        n_tokens: of all texts, without padding.
    """

    def __init__(self, texts: pd.DataFrame, tokenizer: Any, cut: Cut) -> None:
        columns = [texts["text"].tolist(), *([texts["text_b"].tolist()] if "text_b" in texts else [])]
        given = tokenizer(*columns, truncation=True, max_length=cut.length)
        sizes = np.array([len(ids) for ids in given["input_ids"]])
        self.n_tokens = int(sizes.sum())
        self.batches: list[dict[str, Tensor]] = []
        self._label: dict[bytes, int] = {}
        order = np.argsort(sizes, kind="stable")
        for start in range(0, len(order), cut.batch_size):
            rows = order[start : start + cut.batch_size]
            batch = _padded(given, rows, tokenizer)
            self.batches.append(batch)
            labels = texts["label"].iloc[rows].tolist()
            for number, label in enumerate(labels):
                if self._label.setdefault(_key(batch, number), int(label)) != int(label):
                    text = texts["text"].iloc[rows[number]]
                    raise UserError(
                        f"two texts of {cut.length} tokens at most are the same tokens and have different labels, one "
                        f"begins {text[:60]!r}: give a larger --length, or leave one of them out"
                    )

    def labels(self, batch: Batch) -> Tensor:
        """The labels of a batch's texts."""
        return torch.tensor([self._label[_key(batch, number)] for number in range(len(batch["tokens"]))])

    def loss(self, model: HookedModel, batch: Batch) -> Tensor:
        """A metric: cross-entropy of the label, in nats."""
        logits = _logits(model, batch)
        return nn.functional.cross_entropy(logits, self.labels(batch).to(logits.device), reduction="none")

    def errors(self, model: HookedModel, batch: Batch) -> Tensor:
        """A metric: 1 where the label is not the likeliest one."""
        logits = _logits(model, batch)
        return (logits.argmax(-1) != self.labels(batch).to(logits.device)).float()


def read(path: Path, n: int, seed: int) -> pd.DataFrame:
    """Labelled texts from a file, at most ``n`` of them.

    Raises:
        UserError: no such file, it is no table, it lacks a column or texts, or its labels are no numbers of classes.
    """
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    try:
        table = _table(path)
    except ValueError as error:  # pandas' own and those of encodings are its kin
        raise UserError(f"{path} could not be read as {path.suffix or 'a .csv'}: {error}") from None
    if missing := {"text", "label"} - set(table.columns):
        raise UserError(f"{path} needs the columns text and label; it has no {', '.join(sorted(missing))}")
    if not len(table):
        raise UserError(f"{path} holds no texts")
    columns = [c for c in ("text", "text_b") if c in table]
    if bad := [
        number for number, row in enumerate(table[columns].to_numpy(), 1) if any(type(t) is not str for t in row)
    ]:
        raise UserError(f"{path}, row {bad[0]}: {' and '.join(columns)} must be texts")
    label = np.asarray(pd.to_numeric(table["label"], errors="coerce"), dtype=np.float64)
    whole = (label >= 0) & (label % 1 == 0)
    if not whole.all():
        odd = table["label"].tolist()[int(np.argmin(whole))]
        raise UserError(
            f"{path}: a label is the number of a class, 0 or above, as the model counts them; got {str(odd)!r}"
        )
    table = table.assign(label=label.astype(int)).drop_duplicates(columns)
    return table.sample(min(n, len(table)), random_state=seed)


def _table(path: Path) -> pd.DataFrame:
    if path.suffix == ".jsonl":
        return pd.read_json(path, lines=True, dtype=False)  # pyright: ignore[reportArgumentType] (its stubs forget it)
    return pd.read_csv(path, dtype={"text": str, "text_b": str}, keep_default_na=False)  # "NA" is a text


def classifier(checkpoint: Checkpoint, tokenizer: Any, fit: pd.DataFrame | None, cut: Cut) -> Any:
    """The model with a classification head, fitted on ``fit`` where the checkpoint has none.

    Raises:
        UserError: it has none, and there is nothing to fit it on; or the head to fit is not one linear layer.
    """
    n_labels = {} if fit is None else {"num_labels": max(fit["label"].tolist()) + 1}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # what the checkpoint lacks is drawn, and a resumed run draws the same
        module, info = AutoModelForSequenceClassification.from_pretrained(
            str(checkpoint.path), output_loading_info=True, **n_labels
        )
    module.eval()
    if fit is not None:
        head = getattr(module, "classifier", None)
        if not isinstance(head, nn.Linear):
            raise UserError(
                f"--fit fits a head that is one linear layer named classifier; {type(module).__name__} has "
                f"{type(head).__name__ if head is not None else 'none'}: give a checkpoint that is already fine-tuned"
            )
        _fit(module, Labelled(fit, tokenizer, cut))
    elif any("classifier" in name or name.startswith("score") for name in info["missing_keys"]):
        raise UserError(f"{checkpoint.name} has no trained classification head; give labelled texts to fit one (--fit)")
    return module


def _fit(module: Any, texts: Labelled) -> None:
    """Logistic regression (L-BFGS, a small ridge) from what the head reads to the labels."""
    head, seen = module.classifier, []
    handle = head.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    with torch.no_grad():
        for batch in texts.batches:
            valid = batch.get("valid")
            module(input_ids=batch["tokens"], attention_mask=None if valid is None else valid.long())
    handle.remove()
    x, labels = torch.cat(seen), torch.cat([texts.labels(batch) for batch in texts.batches])
    nn.init.zeros_(
        head.weight
    )  # where it begins is drawn at random otherwise, and a resumed run would have another head
    nn.init.zeros_(head.bias)
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Any:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(head(x), labels) + 1e-3 * head.weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)


def _padded(given: Any, rows: Any, tokenizer: Any) -> dict[str, Tensor]:
    some = {name: [given[name][row] for row in rows] for name in ("input_ids", "token_type_ids") if name in given}
    made = tokenizer.pad(some, return_tensors="pt", return_attention_mask=True)
    batch = {"tokens": made["input_ids"]}
    batch |= {"token_type_ids": made["token_type_ids"]} if "token_type_ids" in made else {}
    valid = made["attention_mask"].bool()
    return batch if bool(valid.all()) else batch | {"valid": valid}


def _logits(model: HookedModel, batch: Batch) -> Tensor:
    output: Any = model.run(**batch).output
    logits = output.logits
    return logits.float() if logits.dtype is not torch.float64 else logits


def _key(batch: Batch, row: int) -> bytes:
    tokens, valid = torch.as_tensor(batch["tokens"])[row], batch.get("valid")
    return (tokens if valid is None else tokens[torch.as_tensor(valid)[row]]).cpu().numpy().tobytes()
