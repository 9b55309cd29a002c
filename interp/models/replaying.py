"""Layers that give back what they gave before, so that a change in a late layer costs what comes after it.

Blocks of a stack are called in a row, each on the output of the one before, so it is enough to know the last one's.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from interp.models.module_inputs import ModuleInputs
from interp.models.stacks import layer_path

if TYPE_CHECKING:
    from interp.models.hooked import HookedModel

__all__ = ["blocks_before", "outputs_of", "replayed", "runs_before"]


def blocks_before(model: "HookedModel", heads: Iterable[tuple[str, int]]) -> list[nn.Module]:
    """The layers of a stack before all of some heads, in order; none where the heads lie in several stacks, and in a
    module of one's own, whose layers need not read what the one before them returned."""
    if isinstance(model.inputs, ModuleInputs):
        return []
    paths = [layer_path(model.site(site).path) for site, _ in heads]
    stacks = {path.rpartition(".")[0] for path in paths}
    if len(stacks) > 1 or "" in stacks:
        return []
    first = min(int(path.rpartition(".")[2]) for path in paths)
    layers = model.module.get_submodule(stacks.pop())
    return list(layers.children())[:first]


def runs_before(model: "HookedModel", heads: Sequence[tuple[str, int]]) -> list[list[nn.Module]]:
    """Layers that some heads cannot change, as runs of layers that follow each other: :func:`blocks_before`, and the
    whole encoder where all heads are the decoder's."""
    runs = [blocks_before(model, heads)]
    if model.is_encoder_decoder and {model.site(site).stack for site, _ in heads} == {"decoder"}:
        runs.append(stack_blocks(model, "encoder"))
    return [run for run in runs if run]


def stack_blocks(model: "HookedModel", stack: str) -> list[nn.Module]:
    """All layers of a stack, in order; none where it has no numbered layers."""
    paths = {layer_path(site.path).rpartition(".")[0] for site in model.sites if site.stack == stack}
    return list(model.module.get_submodule(paths.pop()).children()) if len(paths) == 1 and "" not in paths else []


@contextmanager
def outputs_of(blocks: Collection[nn.Module]) -> Iterator[dict[nn.Module, Any]]:
    """What some modules return in the forward pass meanwhile."""
    seen: dict[nn.Module, Any] = {}
    with ExitStack() as hooks:
        for block in blocks:
            hook = block.register_forward_hook(lambda module, given, output: seen.__setitem__(module, _copy(output)))
            hooks.callback(hook.remove)
        yield seen


@contextmanager
def replayed(runs: Sequence[Sequence[nn.Module]], outputs: Mapping[nn.Module, Any], times: int = 1) -> Iterator[None]:
    """Let the modules of each run compute nothing and return what the last of them returned before.

    Args:
        runs: modules in a row.
        outputs: what was returned, of the last module of each run.
        times: the batch holds all sequences so many times, one after the other.
    """
    with ExitStack() as stack:
        for run in runs:
            for block in run[:-1]:
                # what it returns goes to the next block of the run alone, which does not look at it
                stack.enter_context(computed_by(block, lambda *_, last=run[-1], **__: outputs[last]))
            stack.enter_context(computed_by(run[-1], lambda *_, last=run[-1], **__: _copy(outputs[last], times)))
        yield


@contextmanager
def computed_by(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a function compute a module's output for a while."""
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


def _copy(output: Any, times: int = 1, n: int | None = None) -> Any:
    """A block's output, safe from what the model writes into it later, with its n sequences so many times."""
    if isinstance(output, tuple):
        n = next((len(part) for part in output if isinstance(part, Tensor)), None)
        return tuple(_copy(part, times, n) for part in output)
    if not isinstance(output, Tensor):
        return output
    if times == 1 or len(output) != (n or len(output)):  # a bias that all sequences share
        return output.detach().clone()
    return output.detach().repeat(times, *[1] * (output.ndim - 1))
