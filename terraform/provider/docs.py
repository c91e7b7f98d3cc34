"""The pages of docs/resources and docs/data-sources, made from the schemas.

`python -m terraform.provider.docs` writes them; a test says where they are not up to date. Layout
and front matter are those of Terraform's registry.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tf.schema import Attribute

from terraform.provider.function import FunctionResource
from terraform.provider.function_data import FunctionData, FunctionsData
from terraform.provider.function_settings import SETTINGS as FUNCTION_SETTINGS
from terraform.provider.prewarm import SETTINGS as PREWARM_SETTINGS
from terraform.provider.prewarm import PrewarmResource
from terraform.provider.settings import Setting

DOCS = Path(__file__).parents[2] / "docs"

# What is learned or taken from the model where nothing is set, in words.
_UNSET = {
    "model.digest": "none",
    "model.draft": "none",
    "model.max_context": "the model's",
    "keep_alive.idle": "learned",
    "keep_alive.sleep": "never",
    "keep_alive.cold_start_cost": "measured",
    "cron": "none",
    "at": "none",
}
_FUNCTION_EXAMPLE = """\
resource "glowplug_function" "chat" {
  name = "chat"

  model {
    source       = "/models/my-llama"
    quantization = "int8"
  }

  scaling {
    max_replicas = 2
  }

  keep_alive {
    idle = "5m"
  }
}
"""
_PREWARM_EXAMPLE = """\
resource "glowplug_prewarm" "morning" {
  function     = glowplug_function.chat.id
  name         = "morning"
  cron         = "55 7 * * 1-5"
  timezone     = "Europe/Berlin"
  duration     = "2h"
  min_replicas = 2
}
"""
_FUNCTION_DATA_EXAMPLE = """\
data "glowplug_function" "chat" {
  name = "chat"
}

output "max_replicas" {
  value = jsondecode(data.glowplug_function.chat.spec).max_replicas
}
"""
_FUNCTIONS_DATA_EXAMPLE = """\
data "glowplug_functions" "all" {}

output "urls" {
  value = { for each in data.glowplug_functions.all.functions : each.name => each.invoke_url }
}
"""
_FUNCTION_NOTES = """\
## Behaviour

- An apply waits until the model is sealed; it starts no replica for that. A model that cannot be
  sealed fails the apply with the reason. The function stays, tainted where it was new, for the next
  apply to make again.
- What is not set has its default, also when it is taken out again. Changes that others make show in
  the next plan and are taken back by the next apply.
- How many replicas there are, and what they do, is never in the state.
- A changed model is a new revision in place. A new `name` makes a new function and deletes the old.
- Deleting lets running requests finish.
- Scheduled prewarms are left alone: they are
  [glowplug_prewarm](prewarm.md)'s, the command line's or the API's.
- A function of that name that exists with other settings is refused: import it. One with the very
  same settings is taken over, as an apply that broke off leaves it.
- One that somebody changes between plan and apply is left as it is, and the apply fails.
"""
_PREWARM_NOTES = """\
## Behaviour

- `min_replicas` may be no more than the function's `max_replicas`. To lower both, lower that of the
  prewarm first.
- A function that is replaced takes its prewarms with it; with `function` written as above they are
  made again in the same apply.
- A prewarm of that name that exists with other settings is refused: import it.
"""


def pages() -> Mapping[str, str]:
    """Path below docs/ → the page's text."""
    function, prewarm = FunctionResource.get_schema(), PrewarmResource.get_schema()
    blocks = [
        f"### {block.type_name}\n\n{block.block.description}"
        f"{' Required.' if block.required else ''}\n\n"
        + _arguments(block.block.attributes, FUNCTION_SETTINGS, block.type_name)
        for block in function.block_types
    ]
    function_page = [
        _head("function", "Resource", function.description, _FUNCTION_EXAMPLE),
        "## Arguments\n\n" + _arguments(function.attributes, FUNCTION_SETTINGS, ""),
        *blocks,
        "## Attributes\n\n" + _outputs(function.attributes),
        _FUNCTION_NOTES.rstrip(),
        _import("function.chat", "chat", "the function's name"),
    ]
    prewarm_page = [
        _head("prewarm", "Resource", prewarm.description, _PREWARM_EXAMPLE),
        "## Arguments\n\n" + _arguments(prewarm.attributes, PREWARM_SETTINGS, ""),
        "## Attributes\n\n" + _outputs(prewarm.attributes),
        _PREWARM_NOTES.rstrip(),
        _import("prewarm.morning", "chat/morning", "the function's name and the prewarm's"),
    ]
    return {
        "resources/function.md": _page(function_page),
        "resources/prewarm.md": _page(prewarm_page),
        "data-sources/function.md": _data_page("function", FunctionData, _FUNCTION_DATA_EXAMPLE),
        "data-sources/functions.md": _data_page(
            "functions", FunctionsData, _FUNCTIONS_DATA_EXAMPLE
        ),
    }


def _data_page(name: str, source: Any, example: str) -> str:
    schema = source.get_schema()
    parts = [_head(name, "Data Source", schema.description, example)]
    if any(each.required for each in schema.attributes):
        parts.append("## Arguments\n\n" + _arguments(schema.attributes, (), ""))
    return _page([*parts, "## Attributes\n\n" + _outputs(schema.attributes)])


def _page(parts: Iterable[str]) -> str:
    return "\n\n".join(parts) + "\n"


def _head(name: str, kind: str, description: str, example: str) -> str:
    title = f"glowplug_{name}"
    return f"""\
---
page_title: "{title} {kind}"
description: "{description}"
---

<!-- Made by `python -m terraform.provider.docs` from the schema. -->

# {title} ({kind.lower()})

{description}

```hcl
{example.rstrip()}
```"""


def _arguments(attributes: Iterable[Attribute], settings: Iterable[Setting], block: str) -> str:
    by_path = {each.path: each for each in settings}
    lines = []
    for each in attributes:
        if not (each.required or each.optional):
            continue
        setting = by_path.get((block, each.name) if block else (each.name,))
        text = _sentence(each.description)
        if setting is not None:
            text += _facts(setting)
        elif each.required:
            text += " Required."
        if each.requires_replace:
            text += " A change makes a new one."
        lines.append(f"- `{each.name}` ({_type(each)}) {text}")
    return "\n".join(lines)


def _facts(setting: Setting) -> str:
    if setting.required:
        return " Required."
    if setting.default is None:
        shown = _UNSET[".".join(setting.path)]
    elif setting.default == {}:
        shown = "none"
    else:
        default = setting.kind.show(setting.default)
        shown = f"`{default if isinstance(default, str) else json.dumps(default)}`"
    note = f" {_sentence(setting.kind.note)}" if setting.kind.note else ""
    return f"{note} Default: {shown}."


def _outputs(attributes: Iterable[Attribute]) -> str:
    return "\n".join(
        f"- `{each.name}` ({_type(each)}) {_sentence(each.description)}"
        for each in attributes
        if each.computed
    )


def _type(attribute: Attribute) -> str:
    def words(shape: Any) -> str:
        if isinstance(shape, str):
            return shape
        return f"{shape[0]} of {words(shape[1])}" if shape[0] != "object" else "object"

    return words(json.loads(attribute.type.tf_type()))


def _import(address: str, name: str, what: str) -> str:
    return f"""\
## Import

By {what}:

```
terraform import glowplug_{address} {name}
```"""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def main(docs: Path = DOCS) -> None:
    """Write the pages."""
    for path, text in pages().items():
        (docs / path).parent.mkdir(parents=True, exist_ok=True)
        (docs / path).write_text(text)
        sys.stdout.write(f"wrote {docs / path}\n")


if __name__ == "__main__":
    main()
