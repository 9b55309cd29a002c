"""What `--help` says of settings, in plain words, written where tyro reads it: into a dataclass's annotations."""

import dataclasses
import types
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser
from tyro.conf import arg


@cache
def explain(kind: type) -> None:
    """Give each field of a dataclass its help from the string below it, and so in dataclasses inside it.

    The string becomes one paragraph. "None: …", which says what happens without the flag, becomes "Default: …", and
    None is not named as the default beside it, nor that a switch is off. What a field's own ``arg`` says stays.
    """
    said = {param.arg_name: param.description for param in docstring_parser.parse_from_object(kind).params}  # pyright: ignore[reportArgumentType]
    hints = get_type_hints(kind, include_extras=True)
    for each in dataclasses.fields(kind):
        plain, *more = get_args(hints[each.name]) if get_origin(hints[each.name]) is Annotated else (hints[each.name],)
        if dataclasses.is_dataclass(plain):
            explain(plain)
            continue
        ours: dict[str, Any] = {}
        text = " ".join((said.get(each.name) or "").split())
        if text:
            ours["help"] = text.replace("None: ", "Default: ")
        if each.default is None or isinstance(each.default, bool):
            ours["help_behavior_hint"] = ""
        if each.default is None and (metavar := _metavar(plain)):
            ours["metavar"] = metavar
        if ours:
            kind.__annotations__[each.name] = Annotated[plain, arg(**ours), *more]


def _metavar(kind: Any) -> str:
    """How the value of a setting that may be None is shown, without the None; "" to leave it to tyro."""
    if get_origin(kind) not in (Union, types.UnionType):
        return ""
    (of, *others) = [each for each in get_args(kind) if each is not type(None)]
    if others:
        return ""
    if get_origin(of) is Literal:
        return f"{{{','.join(map(str, get_args(of)))}}}"
    if get_origin(of) in (tuple, list):
        return f"[{get_args(of)[0].__name__.upper()} ...]"
    return of.__name__.upper() if isinstance(of, type) and of in (int, float, str) else ""
