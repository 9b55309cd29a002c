"""interp.load: whatever names a model → a HookedModel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel

from interp.errors import UserError
from interp.models.checkpoints import check_finite, load_transformers, locate
from interp.models.hooked import HookedModel
from interp.models.huggingface import hook
from interp.models.projections import Declaration

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

__all__ = ["load"]


def load(
    model: str | PreTrainedModel,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    declarations: Sequence[Declaration] = (),
    trust_remote_code: bool = False,
    verify: bool = True,
    **from_pretrained: Any,
) -> HookedModel:
    """Load a model and put the attention core inside it.

    Args:
        model: a bundled name (``smollm2-135m``, ``minilm``), a folder, a ``.gguf`` file, a hub name, or a transformers
            model that is loaded already (it is hooked in place).
        device: where to put it; pass ``device_map="auto"`` instead for a model larger than one device.
        dtype: of the weights; "auto" is what they were saved in.
        revision: branch, tag or commit of a hub model.
        tokenizer: for a model that is loaded already.
        declarations: names of projections, for attention modules that are not known.
        trust_remote_code: run code that comes with a checkpoint; off unless asked for.
        verify: compare the logits with the untouched model's once (three short forward passes);
            the error found is in ``info["verify"]``.

    Raises:
        UserError: no such model, damaged files, NaN in weights, attention that cannot be reached; it says what to do.
        VerificationError: the model under the core differs from itself by more than rounding.
    """
    if device is not None and "device_map" in from_pretrained:
        raise UserError("device puts a whole model on one device, device_map spreads it over several: give one of them")
    if isinstance(model, str):
        checkpoint = locate(model, revision=revision)
        loaded = load_transformers(
            checkpoint, device=device, dtype=dtype, trust_remote_code=trust_remote_code, **from_pretrained
        )
        info: dict[str, Any] = {
            "name": checkpoint.name,
            "revision": checkpoint.revision,
            "weights_sha256": checkpoint.weights_sha256,
            "quantisation": checkpoint.quantisation,
            "source": checkpoint.source,
        }
        module, tokenizer = loaded.model, tokenizer or loaded.tokenizer
        head = loaded.output_head_loaded
    elif isinstance(model, PreTrainedModel):
        if device is not None or dtype != "auto" or revision is not None or from_pretrained:
            raise UserError("a model that is loaded already keeps its device and dtype; move it before interp.load")
        check_finite(model)
        name = getattr(model.config, "name_or_path", "") or type(model).__name__
        info = {
            "name": name,
            "revision": None,
            "weights_sha256": None,
            "quantisation": None,
            "source": "given in Python",
        }
        module, head = model, model.get_output_embeddings() is not None
    else:
        raise UserError(f"interp.load takes a name, a path or a transformers model; got {type(model).__name__}")
    hooked = hook(module, tokenizer=tokenizer, info=info, output_head_loaded=head, declarations=declarations)
    if verify:
        hooked.info["verify"] = hooked.verify()
    return hooked
