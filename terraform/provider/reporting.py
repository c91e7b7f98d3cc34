"""Errors as Terraform's diagnostics, at the attribute that they are about."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tf.types import Unknown
from tf.utils import Diagnostics

from glowplug.errors import GlowplugError, InvalidSpec
from terraform.provider.schema import State
from terraform.provider.settings import Setting, to_spec, value_at


@contextmanager
def reported(
    diagnostics: Diagnostics, summary: str, settings: Iterable[Setting] = ()
) -> Iterator[None]:
    """Glowplug's errors inside become diagnostics, at the attribute that they name."""
    try:
        yield
    except GlowplugError as error:
        named = _setting_of(error.param, settings)
        path = list(named.path) if named else None
        diagnostics.add_error(summary, _sentence(error.message), path=path)


def check(
    diagnostics: Diagnostics,
    settings: Iterable[Setting],
    config: Mapping[str, Any],
    parse: Callable[[Any], object],
    stand_ins: Mapping[str, Any],
) -> None:
    """Report everything that `parse` says against the spec of this configuration.

    `stand_ins` are values, by field, that nothing can be said against: for those that are not known
    yet, and in place of what was reported, so that all mistakes show at once.
    """
    settings = list(settings)
    spec = to_spec(settings, config)
    for each in settings:
        if value_at(config, each.path) is Unknown:
            _stand_in(spec, each, stand_ins)
    for _ in settings:  # each round takes one mistake out
        try:
            parse(spec)
        except InvalidSpec as error:
            named = _setting_of(error.param, settings)
            if named is None:
                diagnostics.add_error("Invalid settings", _sentence(error.message))
                return
            message = error.message.removeprefix(f"{error.param}: ")
            summary = f"Invalid {'.'.join(named.path)}"
            diagnostics.add_error(summary, _sentence(message), path=list(named.path))
            _stand_in(spec, named, stand_ins)
        else:
            return


def warn_taken_over(diagnostics: Diagnostics, what: str) -> None:
    """Say that what was to be made was there, just as it was to be."""
    diagnostics.add_warning(
        f"{what} was taken over",
        "It existed already with the very same settings, as an apply that breaks off leaves it. If "
        "another configuration manages it too, take it out of one of them.",
    )


def _stand_in(spec: State, setting: Setting, stand_ins: Mapping[str, Any]) -> None:
    field, inner = setting.field[0], setting.field[1:]
    if field in stand_ins:
        spec[field] = stand_ins[field]
    elif not inner:
        spec.pop(field, None)
    elif field in spec:
        spec[field].pop(inner[0], None)


def _setting_of(param: str | None, settings: Iterable[Setting]) -> Setting | None:
    """The setting of a field's dotted name, or of one inside it, as adapters.NAME."""
    if param is None:
        return None
    steps = tuple(param.split("."))
    for each in settings:
        if steps[: len(each.field)] == each.field:
            return each
    return None


def _sentence(message: str) -> str:
    return f"{message[:1].upper()}{message[1:]}."
