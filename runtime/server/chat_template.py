"""Chat templates: a model's Jinja template turns messages into its prompt text.

The environment is the one that transformers gives templates (its `apply_chat_template`): immutable
sandbox, loop controls, `{% generation %}`, `raise_exception`, `strftime_now` and a `tojson` that
does not escape HTML. A template comes with the model and is not trusted: it sees no Python
internals, its output is bounded, and so is its time: every loop and macro looks at the clock.
Thread-safe.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from glowplug.errors import InvalidRequest
from snapshot.manifest import ChatFormat

_deadline_s: ContextVar[float] = ContextVar("_deadline_s")  # time.monotonic(), while rendering


class OutputTooLong(Exception):
    """The rendered text is over the limit."""


class ChatTemplate:
    """One model's chat format."""

    def __init__(self, chat: ChatFormat) -> None:
        self._template: Template | None = None
        self._problem = "this model has no chat template; use /v1/completions"
        if chat.template is not None:
            try:
                self._template = _environment().from_string(chat.template)
            except (TemplateError, RecursionError) as error:
                self._problem = f"this model's chat template is broken ({error})"
        tokens = {"bos_token": chat.bos_token, "eos_token": chat.eos_token}
        self._tokens = {name: token for name, token in tokens.items() if token is not None}
        self.knows_developer_role = "developer" in (chat.template or "")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        variables: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool,
        max_chars: int,
        timeout_s: float = 5.0,
    ) -> str:
        """The prompt text. `variables` are the request's own, for the template to read.

        Raises:
            InvalidRequest: there is no template, or it refuses these messages (with its message),
                or it takes over `timeout_s`.
            OutputTooLong: over `max_chars`.
        """
        if self._template is None:
            raise InvalidRequest(self._problem, param="messages", code="no_chat_template")
        given = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._tokens,
        }
        if taken := given.keys() & variables.keys():
            raise InvalidRequest(
                f"chat_template_kwargs: {min(taken)} is set by the server",
                param="chat_template_kwargs",
            )
        restore = _deadline_s.set(time.monotonic() + timeout_s)
        try:
            return _join(self._template.generate(given | dict(variables)), max_chars=max_chars)
        except OutputTooLong:
            raise
        except TemplateError as error:
            raise InvalidRequest(f"messages: {error.message}"[:1000], param="messages") from None
        except Exception as error:  # whatever a template does wrong with these messages
            raise InvalidRequest(
                f"messages: the model's chat template failed on them ({error})"[:1000],
                param="messages",
            ) from None
        finally:
            _deadline_s.reset(restore)


def _join(pieces: Iterable[str], *, max_chars: int) -> str:
    kept, chars = [], 0
    for piece in pieces:
        kept.append(piece)
        chars += len(piece)
        if chars > max_chars:
            raise OutputTooLong
    return "".join(kept)


class _Environment(ImmutableSandboxedEnvironment):
    """Puts a look at the clock at the head of every loop and macro of a template."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        blocks: list[nodes.For | nodes.Macro] = [*template.find_all(nodes.For)]
        blocks += template.find_all(nodes.Macro)
        for block in blocks:
            check = nodes.Call(nodes.EnvironmentAttribute("check_time"), [], [], None, None)
            block.body.insert(0, nodes.ExprStmt(check, lineno=block.lineno))
        return template

    @staticmethod
    def check_time() -> None:
        if time.monotonic() > _deadline_s.get():
            raise TemplateError("the model's chat template takes too long on them")


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`, a mark for training: just its content here."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's interface)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


class _Namespace(Namespace):
    """`namespace()` whose attributes cannot be Python internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as Jinja's: `self` may be a key
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the attribute {name!r}")


class _Dict:
    """`dict(...)` and `dict.fromkeys(...)`, and nothing else of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:  # noqa: A002 (templates may name it)
    return datetime.now().strftime(format)
