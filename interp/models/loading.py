"""interp.load: whatever names or is a model → a HookedModel."""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel

from interp.errors import UserError
from interp.models.checkpoints import check_finite, load_transformers, locate
from interp.models.examples import fitting, read_example
from interp.models.files import read_json
from interp.models.hooked import HookedModel
from interp.models.huggingface import hook
from interp.models.module import hook_module
from interp.models.projections import Declaration
from interp.models.pruned_folder import is_pruned

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["load"]


_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def load(
    model: str | nn.Module,
    example: Any = None,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    declarations: Sequence[Declaration] = (),
    forward: Callable[..., Any] | None = None,
    sites: Mapping[str, str] | Collection[str] | None = None,
    n_ctx: int | None = None,
    trust_remote_code: bool = False,
    verify: bool = True,
    **from_pretrained: Any,
) -> HookedModel:
    """Load a model and put the attention core inside it.

    Args:
        model: a bundled name (``smollm2-135m``, ``minilm``, ``tiny-2l``), a folder, a ``.gguf`` file, a hub name, a
            factory as ``package.module:function`` (which returns a module, a module and its example, or what this
            function made of them), a model of transformers or `interp.models.transformer` that is
            loaded already, or any ``nn.Module`` (these are hooked in place).
        example: for a module of one's own: what it is run on once, to find its attention (a tensor, a tuple or a dict
            of arguments), or the path of a file that holds it (:func:`interp.models.examples.read_example`). Token ids
            from a file also say how long its inputs may be, where ``n_ctx`` does not. Random token ids when it is left
            out and the module has an embedding.
        device: where to put it; pass ``device_map="auto"`` instead for a model larger than one device.
        dtype: of the weights; "auto" is what they were saved in.
        revision: branch, tag or commit of a hub model.
        tokenizer: for a model that is loaded already.
        declarations: names of projections, for attention modules that are not known.
        forward, sites, n_ctx: for a module of one's own; see :func:`interp.models.module.hook_module`.
        trust_remote_code: run code that comes with a checkpoint; off unless asked for.
        verify: compare the output with the untouched model's once (a few short forward passes); the error found is in
            ``info["verify"]``.

    Raises:
        UserError: no such model, damaged files, NaN in weights, attention that cannot be reached; it says what to do.
        VerificationError: the model under the core differs from itself by more than rounding.
    """
    if device is not None and "device_map" in from_pretrained:
        raise UserError("device puts a whole model on one device, device_map spreads it over several: give one of them")
    name = None
    if isinstance(example, (str, Path)):
        example = read_example(example)
        if n_ctx is None and isinstance(example, torch.Tensor) and not example.is_floating_point():
            n_ctx = example.shape[1]
    if isinstance(model, str) and _FACTORY.fullmatch(model):
        name, made, example = model, *_made_by(model, example)
        if isinstance(made, HookedModel):
            return _as_asked(made, name, device, dtype)
        model = made
    if isinstance(model, str):
        if example is not None or forward is not None or sites is not None:
            raise UserError(
                "example (--tokens), forward and sites are for a module of one's own, package.module:function, and "
                f"{model} is a model by name"
            )
        hooked = _by_name(model, revision, device, dtype, trust_remote_code, tokenizer, declarations, from_pretrained)
    elif isinstance(model, nn.Module):
        if revision is not None or from_pretrained:
            raise UserError("revision and from_pretrained's arguments are for models by name; this one is a module")
        check_finite(model)
        _move(model, device, dtype)
        info = _given_info(model, name)
        if isinstance(model, PreTrainedModel):
            head = model.get_output_embeddings() is not None
            hooked = hook(model, tokenizer=tokenizer, info=info, output_head_loaded=head, declarations=declarations)
        elif _is_own(model):
            hooked = _hook_own(model, tokenizer, info)
        else:
            given = _tokens_for(model) if example is None else fitting(example, model)
            hooked = hook_module(
                model, given, forward=forward, sites=sites,
                declarations=declarations, tokenizer=tokenizer, info=info, n_ctx=n_ctx,
            )  # fmt: skip
    else:
        raise UserError(f"interp.load takes a name, a path or a module; got {type(model).__name__}")
    if verify:
        hooked.info["verify"] = hooked.verify()
    return hooked


def _by_name(
    name: str, revision: str | None, device: Any, dtype: Any, trust_remote_code: bool,
    tokenizer: PreTrainedTokenizerBase | None, declarations: Sequence[Declaration], from_pretrained: dict[str, Any],
) -> HookedModel:  # fmt: skip
    if (pruned := _pruned(name, revision, device, dtype, trust_remote_code, tokenizer, from_pretrained)) is not None:
        return pruned
    checkpoint = locate(name, revision=revision)
    info = {
        "name": checkpoint.name,
        "revision": checkpoint.revision,
        "weights_sha256": checkpoint.weights_sha256,
        "quantisation": checkpoint.quantisation,
        "source": checkpoint.source,
    }
    if read_json(checkpoint.path / "config.json").get("model_type") == "interp-transformer":
        if from_pretrained:
            raise UserError(f"{', '.join(from_pretrained)} are for transformers' models, and {name} is none of them")
        return _hook_own(_load_own(checkpoint.path, device, dtype), tokenizer, info)
    loaded = load_transformers(
        checkpoint, device=device, dtype=dtype, trust_remote_code=trust_remote_code, **from_pretrained
    )
    if loaded.unread:
        more = [f"and {len(loaded.unread) - 8:,} more"] if len(loaded.unread) > 8 else []
        info["unread"] = [*loaded.unread[:8], *more]
    return hook(
        loaded.model, tokenizer=tokenizer or loaded.tokenizer, info=info,
        output_head_loaded=loaded.output_head_loaded, declarations=declarations,
    )  # fmt: skip


def _pruned(
    name: str, revision: str | None, device: Any, dtype: Any, trust_remote_code: bool,
    tokenizer: PreTrainedTokenizerBase | None, from_pretrained: dict[str, Any],
) -> HookedModel | None:  # fmt: skip
    """The model in a folder that was saved by `interp.models.pruning`; None for any other name."""
    folder = Path(name).expanduser()
    if not is_pruned(folder):
        return None
    from interp.models.pruning.loading import load_pruned

    if revision is not None:
        raise UserError(f"a revision is for hub models; {name} is on this machine, and {revision!r} was asked for")
    return load_pruned(
        folder, name, device=device, dtype=dtype, trust_remote_code=trust_remote_code, tokenizer=tokenizer,
        from_pretrained=from_pretrained,
    )  # fmt: skip


# The project's own transformer is imported where there is one: TransformerLens's hook points take a second to import


def _is_own(model: nn.Module) -> bool:
    own = sys.modules.get("interp.models.transformer")
    return own is not None and isinstance(model, own.Transformer)


def _load_own(folder: Path, device: Any, dtype: Any) -> nn.Module:
    from interp.models.transformer import load_transformer

    return load_transformer(folder, device=device, dtype=dtype)


def _hook_own(model: Any, tokenizer: PreTrainedTokenizerBase | None, info: dict[str, Any]) -> HookedModel:
    from interp.models.transformer import hook_transformer

    return hook_transformer(model, tokenizer=tokenizer, info=info)


def _made_by(factory: str, example: Any) -> tuple[nn.Module | HookedModel, Any]:
    """The module that ``package.module:function`` makes, and its example, which the function may return beside it; or
    the hooked model that it makes."""
    path, _, name = factory.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module beside the working directory, as `python -m` would find it
    try:
        function: Any = importlib.import_module(path)
    except ImportError as error:
        raise UserError(f"{factory}: the module {path} cannot be imported ({error})") from error
    for part in name.split("."):
        if not hasattr(function, part):
            raise UserError(f"{factory}: {path} has no {part!r}; it has {', '.join(_public(function)[:8])}")
        function = getattr(function, part)
    try:
        made = function()
    except Exception as error:  # whatever a person's code raises is theirs to know
        raise UserError(f"{factory}() raised {type(error).__name__}: {error}") from error
    if isinstance(made, tuple) and len(made) == 2:
        made, example = made[0], made[1] if example is None else example
    if isinstance(made, HookedModel) and example is not None:
        raise UserError(f"{factory}() returned a hooked model, which has its example already: leave --tokens out")
    if not isinstance(made, nn.Module | HookedModel):
        raise UserError(
            f"{factory}() must return a module, a module and an example input, or interp.load(module, …); got "
            f"{type(made).__name__}"
        )
    return made, example


def _as_asked(hooked: HookedModel, name: str, device: Any, dtype: Any) -> HookedModel:
    """A hooked model that a factory made, under the factory's name, moved where it was asked for."""
    _move(hooked.module, device, dtype)
    hooked.info |= {
        "name": name, "source": f"factory {name}", "device": str(hooked.device),
        "dtype": str(hooked.dtype).removeprefix("torch."),
    }  # fmt: skip
    return hooked


def _public(module: Any) -> list[str]:
    return [name for name in vars(module) if not name.startswith("_")]


def _move(model: nn.Module, device: Any, dtype: Any) -> None:
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype != "auto" and not (isinstance(kind, torch.dtype) and kind.is_floating_point):
        raise UserError(f"there is no floating dtype {dtype!r}: use float32, bfloat16, float16 or float64")
    try:
        model.to(device=device, dtype=None if dtype == "auto" else kind)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises the latter
        raise UserError(f"the model cannot be moved to device {device}: {error}") from error


def _given_info(model: nn.Module, name: str | None) -> dict[str, Any]:
    config = getattr(model, "config", None)
    known = name or getattr(config, "name_or_path", "") or type(model).__name__
    return {
        "name": known, "revision": None, "weights_sha256": parameters_sha256(model), "quantisation": None,
        "source": f"factory {name}" if name else "given in Python",
    }  # fmt: skip


def parameters_sha256(model: nn.Module) -> str:
    """Hash of a module's state: names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for key, value in model.state_dict().items():
        parts = value if isinstance(value, tuple) else (value,)  # torch.ao packs quantised weights and biases
        for part in parts:
            if not isinstance(part, torch.Tensor):
                digest.update(f"{key} {part!r}".encode())
                continue
            tensor = part.detach().dequantize() if part.is_quantized else part.detach()
            digest.update(f"{key} {part.dtype} {list(part.shape)}".encode())
            digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _tokens_for(model: nn.Module) -> torch.Tensor:
    """Random token ids for a module that begins with an embedding."""
    embeddings = [child for child in model.modules() if isinstance(child, nn.Embedding)]
    if not embeddings:
        raise UserError(
            f"{type(model).__name__} has no embedding, so what it takes is not known: give interp.load an example= "
            "of its input (a tensor, a tuple or a dict of arguments)"
        )
    generator = torch.Generator().manual_seed(0)
    fewest = min(child.num_embeddings for child in embeddings)  # which one is that of the tokens is not known yet
    return torch.randint(0, fewest, (2, min(8, fewest)), generator=generator)
