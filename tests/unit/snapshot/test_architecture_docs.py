"""docs/deploy.md lists the architectures that can be sealed, all of them and no others."""

import re
from pathlib import Path

from snapshot import gguf_families, hf_families

DEPLOY_MD = Path(__file__).parents[3] / "docs" / "deploy.md"


def listed(column: int) -> set[str]:
    _, _, table = DEPLOY_MD.read_text().partition("| architecture | `model_type`")
    rows = table.partition("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[column])}


def test_hugging_face_model_types() -> None:
    assert listed(2) == {*hf_families.FAMILIES, "gemma3"}


def test_gguf_architectures() -> None:
    assert listed(3) == set(gguf_families.FAMILIES)
