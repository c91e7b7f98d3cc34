"""The packets between the pod's processes."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.contracts import Assignment
from runtime.pod import child_wire
from runtime.pod.child_wire import (
    Alive,
    Check,
    Drain,
    Expect,
    Failed,
    Fork,
    Forked,
    Imported,
    Serving,
    StandbyReady,
    Take,
)

milliseconds = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
assignments = st.builds(
    Assignment,
    replica=st.text(),
    function=st.text(),
    revision=st.text(),
    snapshot=st.text(),
    max_context=st.none() | st.integers(min_value=1),
    max_seqs=st.integers(min_value=1),
    kv_cache_bytes=st.integers(min_value=1),
    speculation=st.sampled_from(["auto", "off"]),
    pooling=st.sampled_from(["auto", "mean"]),
    adapters=st.dictionaries(st.text(), st.text(), max_size=3),
    adapter_cache_bytes=st.integers(min_value=0),
)
messages = st.one_of(
    st.builds(Imported, imports_ms=milliseconds),
    st.builds(Check),
    st.builds(Alive),
    st.builds(Fork),
    st.builds(Forked, pid=st.integers(), fork_ms=milliseconds),
    st.builds(StandbyReady, warm_ms=milliseconds),
    st.builds(Expect, snapshot=st.text()),
    st.builds(Take, assignment=assignments, sent_s=milliseconds),
    st.builds(Serving, stages_ms=st.dictionaries(st.text(), milliseconds), sent_s=milliseconds),
    st.builds(Drain, drain_s=milliseconds),
    st.builds(Failed, message=st.text()),
)


@settings(derandomize=True, deadline=None)
@given(messages)
def test_a_message_survives_the_wire(message: child_wire.Message) -> None:
    assert child_wire.decode(child_wire.encode(message)) == message


@pytest.mark.parametrize(
    "packet",
    [b"", b"{}", b"[1]", b"\xff", b'{"kind": "Stop"}', b'{"kind": "Forked", "pid": 1}',
     b'{"kind": "Take", "assignment": null, "sent_s": 1}',
     b'{"kind": "Drain", "drain_s": 1, "more": 2}'],
)  # fmt: skip
def test_anything_else_is_refused(packet: bytes) -> None:
    with pytest.raises(ValueError, match="not a pod packet"):
        child_wire.decode(packet)


def test_packets_keep_their_borders_and_their_descriptors() -> None:
    here, there = child_wire.pair()
    read_end, write_end = os.pipe()
    with here, there:
        child_wire.send(here, Drain(drain_s=1.0), (write_end,))
        child_wire.send(here, Drain(drain_s=2.0))
        os.close(write_end)
        first, second = (child_wire.receive(there, descriptors=1) for _ in range(2))
        assert first is not None
        assert second == (Drain(drain_s=2.0), [])
        message, (descriptor,) = first
        assert message == Drain(drain_s=1.0)
        os.write(descriptor, b"through")
        os.close(descriptor)
        assert os.read(read_end, 100) == b"through"
        os.close(read_end)


def test_the_end_of_the_stream_is_none() -> None:
    here, there = child_wire.pair()
    with there:
        here.close()
        assert child_wire.receive(there) is None
