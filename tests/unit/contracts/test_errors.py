"""Each error has a status, a type and OpenAI's body; only those that may be retried say when."""

import pytest

from glowplug import errors
from glowplug.errors import GlowplugError, Overloaded

KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_tree_in_the_docstring_is_true(kind: type[GlowplugError]) -> None:
    assert errors.__doc__ is not None
    line = next(
        line
        for line in errors.__doc__.splitlines()
        if line.lstrip(" │├└─").split() and line.lstrip(" │├└─").split()[0] == kind.__name__
    )
    words = line.split()
    statuses = [word for word in words if word.isdigit()]
    if statuses:
        assert statuses == [str(kind.status)]
    else:  # a refinement has its parent's status
        (parent,) = kind.__bases__
        assert issubclass(parent, GlowplugError)
        assert (kind.status, kind.type) == (parent.status, parent.type)


def test_body_is_openais() -> None:
    error = Overloaded("the queue is full", param="queue", code="queue_full", retry_after_s=3)
    assert error.body() == {
        "error": {
            "message": "the queue is full",
            "type": "rate_limit_error",
            "param": "queue",
            "code": "queue_full",
        }
    }
    assert error.headers() == {"retry-after": "3"}
    assert str(error) == "the queue is full"


def test_no_retry_after_unless_given() -> None:
    assert Overloaded("full").headers() == {}
