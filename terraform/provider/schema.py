"""What the `tf` framework's schemas lack: a block that is there at most once, and objects.

Values are what the framework hands around: Python's own, None for what is not set, and `Unknown`
for what a plan cannot know yet.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tf.schema import Attribute, Block, NestedBlock, NestMode
from tf.types import TfType, Unknown

State = dict[str, Any]


class SingleBlock(NestedBlock):
    """A block that a configuration has once, or, unless `required`, not at all: None then."""

    def __init__(
        self, name: str, attributes: Sequence[Attribute], description: str, *, required: bool
    ) -> None:
        times = 1 if required else 0
        block = Block(attributes=list(attributes), description=description)
        super().__init__(name, NestMode.Single, block, min_items=times, max_items=times)
        self.required = required

    def encode(self, value: Any) -> Any:
        """From Python to the wire."""
        return self._each("encode", value)

    def decode(self, value: Any) -> Any:
        """From the wire to Python."""
        return self._each("decode", value)

    def semantically_equal(self, a_decoded: Any, b_decoded: Any) -> bool:
        """Whether the framework may keep the one for the other."""
        return bool(a_decoded == b_decoded)

    def _each(self, way: str, value: Any) -> Any:
        if value is None or value is Unknown:
            return value
        types = {attribute.name: attribute.type for attribute in self.block.attributes}
        return {
            name: each if each is None or each is Unknown else getattr(types[name], way)(each)
            for name, each in value.items()
        }


class Object(TfType):
    """Named values of types of their own; a dict in Python."""

    def __init__(self, attributes: Mapping[str, TfType]) -> None:
        self.attributes = attributes

    def encode(self, value: Any) -> Any:
        """From Python to the wire."""
        return value

    def decode(self, value: Any) -> Any:
        """From the wire to Python."""
        return value

    def tf_type(self) -> bytes:
        """The type as Terraform writes it."""
        types = {name: json.loads(each.tf_type()) for name, each in self.attributes.items()}
        return json.dumps(["object", types]).encode()
