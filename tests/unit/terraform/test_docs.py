"""The pages on the Terraform resources say what the schemas say."""

from terraform.provider.docs import DOCS, pages


def test_the_pages_are_up_to_date() -> None:
    for path, text in pages().items():
        assert (DOCS / path).read_text() == text, f"run python -m terraform.provider.docs ({path})"


def test_there_are_no_others() -> None:
    found = {
        str(path.relative_to(DOCS))
        for folder in ("resources", "data-sources")
        for path in (DOCS / folder).iterdir()
    }
    assert found == set(pages())
