"""Michel et al. 2019 on a text classifier: their numbers beside those measured here.

``python -m analyses.reproduce_michel --model MODEL --scored A.csv --reported B.csv`` takes a BERT with a classification
head (theirs: BERT-base, fine-tuned on MNLI or SST-2) and labelled texts (columns ``text``, ``label``, and ``text_b``
for pairs). It prunes heads by importance, leaves one head of each layer, and compares what single heads are worth on
two sets of texts. ``--fit C.csv`` fits the classification head of an encoder that has none, by logistic regression.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import tyro
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import interp
from interp import HookedModel, UserError
from interp.ablation import Batch, ablation_effects, all_but_one, single_heads
from interp.importance import michel
from interp.models.checkpoints import locate
from interp.statistics import mean_interval

__all__ = ["PUBLISHED", "Config", "Labelled", "main", "reproduce"]

#: What the paper says of BERT-base: layers of 12 heads; change of accuracy in percent with one head left of each layer.
PUBLISHED: dict[str, Any] = {
    "prunable, MNLI": 0.40,
    "prunable, SST-2": 0.60,
    "r between data": 0.68,
    "best head alone, MNLI": [-0.01, 0.10, -0.14, -0.53, -0.29, -0.52, 0.05, -0.72, -0.96, 0.07, -0.19, -0.12],
}
SHARES = tuple(step / 10 for step in range(11))


@dataclass(frozen=True)
class Config:
    """Prune a classifier by importance, and print what Michel et al. (2019) found beside what is found."""

    scored: Path
    """Labelled texts on which importance is scored: .csv or .jsonl with text, label and, for pairs, text_b."""
    reported: Path
    """Labelled texts on which accuracy is measured (a file of its own)."""
    model: str = "bert-base-uncased"
    """A classifier: a folder, hub name or bundled name."""
    fit: Path | None = None
    """Labelled texts to fit the classification head on, where the checkpoint has none."""
    n: int = 512
    """At most so many texts of each file that is measured on, drawn at random."""
    fit_n: int = 1000
    """At most so many texts to fit the head on."""
    length: int = 128
    """Tokens that a text is cut to."""
    batch_size: int = 32
    """Texts of a pass."""
    seed: int = 0
    """Seed of the draw."""

    def __post_init__(self) -> None:
        if min(self.n, self.fit_n, self.batch_size) < 1 or self.length < 3:
            raise UserError("--n, --fit-n and --batch-size are at least 1, --length at least 3")


class Labelled:
    """Labelled texts as batches, and the metrics that know their labels.

    Metrics see batches and no labels, so that the label of a sequence is found by its tokens.
    """

    def __init__(self, texts: pd.DataFrame, tokenizer: Any, config: Config) -> None:
        self.batches: list[dict[str, Tensor]] = []
        self._label: dict[bytes, int] = {}
        for start in range(0, len(texts), config.batch_size):
            part = texts.iloc[start : start + config.batch_size]
            pairs = [part["text"].tolist(), *([part["text_b"].tolist()] if "text_b" in part else [])]
            given = tokenizer(*pairs, padding=True, truncation=True, max_length=config.length, return_tensors="pt")
            batch = {"tokens": given["input_ids"], "valid": given["attention_mask"].bool()}
            batch |= {"token_type_ids": given["token_type_ids"]} if "token_type_ids" in given else {}
            self.batches.append(batch)
            for tokens, valid, label in zip(batch["tokens"], batch["valid"], part["label"], strict=True):
                self._label[_key(tokens, valid)] = int(label)

    def labels(self, batch: Batch) -> Tensor:
        """The labels of a batch's texts."""
        rows = zip(batch["tokens"], batch["valid"], strict=True)
        return torch.tensor([self._label[_key(tokens, valid)] for tokens, valid in rows])

    def loss(self, model: HookedModel, batch: Batch) -> Tensor:
        """A metric: cross-entropy of the label, in nats."""
        logits = _logits(model, batch)
        return nn.functional.cross_entropy(logits, self.labels(batch).to(logits.device), reduction="none")

    def errors(self, model: HookedModel, batch: Batch) -> Tensor:
        """A metric: 1 where the label is not the likeliest one."""
        logits = _logits(model, batch)
        return (logits.argmax(-1) != self.labels(batch).to(logits.device)).float()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code."""
    try:
        config = tyro.cli(Config, args=argv, prog="python -m analyses.reproduce_michel")
        found = reproduce(config)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{found.to_string(index=False)}\n")
    return 0


def reproduce(config: Config) -> pd.DataFrame:
    """``quantity, published, measured``: one row a number of the paper."""
    place = str(locate(config.model).path)
    tokenizer = AutoTokenizer.from_pretrained(place)
    scored, reported = (
        Labelled(read(path, config.n, config.seed), tokenizer, config) for path in (config.scored, config.reported)
    )
    module = classifier(place, tokenizer, config)
    model = interp.load(module, tokenizer=tokenizer, verify=False)
    rows = [("accuracy of the whole model", "", f"{1 - _errors(model, reported).mean():.3f}")]
    importance = michel(model, scored.batches, scored.loss)
    rows += _curve(model, importance, reported)
    rows += _alone(model, scored, reported)
    effects = [single(model, texts) for texts in (scored, reported)]
    r = f"{np.corrcoef(*effects)[0, 1]:.2f}" if min(np.ptp(each) for each in effects) > 0 else "not defined"
    rows.append(("r of single heads' effects, both files", f"{PUBLISHED['r between data']} (on accuracy)", r))
    return pd.DataFrame(rows, columns=pd.Index(["quantity", "published", "measured"]))


def single(model: HookedModel, texts: Labelled) -> NDArray[np.float64]:
    """Change of the loss without each head: few texts tell heads apart by it, where accuracy stays the same."""
    return ablation_effects(model, texts.batches, texts.loss, single_heads(model), replay=True).change[0].mean(1)


def read(path: Path, n: int, seed: int) -> pd.DataFrame:
    """Labelled texts from a file, at most ``n`` of them.

    Raises:
        UserError: no such file, or it lacks a column.
    """
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    table = pd.read_json(path, lines=True) if path.suffix == ".jsonl" else pd.read_csv(path)
    if missing := {"text", "label"} - set(table.columns):
        raise UserError(f"{path} needs the columns text and label; it has no {', '.join(sorted(missing))}")
    table = table.drop_duplicates([c for c in ("text", "text_b") if c in table])
    return table.sample(min(n, len(table)), random_state=seed)


def classifier(place: str, tokenizer: Any, config: Config) -> Any:
    """The model with a classification head, fitted where the checkpoint has none.

    Raises:
        UserError: it has none, and there is nothing to fit it on.
    """
    texts = None if config.fit is None else read(config.fit, config.fit_n, config.seed)
    n_labels = {} if texts is None else {"num_labels": int(texts["label"].nunique())}
    module, info = AutoModelForSequenceClassification.from_pretrained(place, output_loading_info=True, **n_labels)
    module.eval()
    if texts is not None:
        _fit(module, Labelled(texts, tokenizer, config))
    elif any("classifier" in name or name.startswith("score") for name in info["missing_keys"]):
        raise UserError(f"{config.model} has no trained classification head; give labelled texts to fit one (--fit)")
    return module


def _fit(module: Any, texts: Labelled) -> None:
    """Logistic regression (L-BFGS, a small ridge) from what the head reads to the labels."""
    head, seen = module.classifier, []
    handle = head.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    with torch.no_grad():
        for batch in texts.batches:
            module(input_ids=batch["tokens"], attention_mask=batch["valid"].long())
    handle.remove()
    x, labels = torch.cat(seen), torch.cat([texts.labels(batch) for batch in texts.batches])
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Any:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(head(x), labels) + 1e-3 * head.weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)


def _curve(model: HookedModel, importance: pd.DataFrame, reported: Labelled) -> list[tuple[str, str, str]]:
    """Accuracy by share pruned, and the last share at which it has not surely fallen."""
    order = importance.sort_values("importance", kind="stable")
    heads = [(str(site), int(head)) for site, head in zip(order["site"], order["head"], strict=True)]
    sets = [heads[: round(share * len(heads))] for share in SHARES[1:]]
    effects = ablation_effects(model, reported.batches, reported.errors, sets)
    change = mean_interval(effects.change[0].T)
    fallen = np.flatnonzero(change.low > 0)
    free = SHARES[int(fallen[0])] if len(fallen) else 1.0
    published = f"{PUBLISHED['prunable, MNLI']} MNLI, {PUBLISHED['prunable, SST-2']} SST-2"
    rows = [("share that goes without a sure fall", published, f"{free:.1f}")]
    for share, value, low, high in zip(SHARES[1:], change.value, change.low, change.high, strict=True):
        rows.append((f"accuracy change, {share:.0%} pruned", "", f"{-value:+.3f} [{-high:+.3f}, {-low:+.3f}]"))
    return rows


def _alone(model: HookedModel, scored: Labelled, reported: Labelled) -> list[tuple[str, str, str]]:
    """Change of accuracy, in percent, with the best head alone in each layer; the head is chosen on the scored file."""
    sets = all_but_one(model)
    tried = ablation_effects(model, scored.batches, scored.loss, list(sets.values()), replay=True).change[0].mean(1)
    by_site: dict[str, tuple[float, tuple[tuple[str, int], ...]]] = {}
    for (site, head), value in zip(sets, tried, strict=True):
        by_site[site] = min(by_site.get(site, (np.inf, ())), (float(value), sets[site, head]))
    chosen = [others for _, others in by_site.values()]
    found = ablation_effects(model, reported.batches, reported.errors, chosen, replay=True).change[0].mean(1)
    published = PUBLISHED["best head alone, MNLI"] if len(found) == 12 else [""] * len(found)
    return [
        (f"layer {layer + 1} with its best head alone, %", str(known), f"{-100 * value:+.2f}")
        for layer, (known, value) in enumerate(zip(published, found, strict=True))
    ]


def _errors(model: HookedModel, texts: Labelled) -> NDArray[np.float64]:
    return np.concatenate([texts.errors(model, batch).double().cpu().numpy() for batch in texts.batches])


def _logits(model: HookedModel, batch: Batch) -> Tensor:
    logits = model.run(**batch).output.logits
    return logits.float() if logits.dtype is not torch.float64 else logits


def _key(tokens: Tensor, valid: Tensor) -> bytes:
    return tokens[valid].cpu().numpy().tobytes()


if __name__ == "__main__":
    raise SystemExit(main())
