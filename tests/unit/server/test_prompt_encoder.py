"""Prompts become the token ids that the model was trained to see."""

import asyncio
import threading

import pytest
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from glowplug.errors import ContextLengthExceeded, InvalidRequest
from runtime.server.prompt_encoder import PromptEncoder
from runtime.server.protocol import Message
from snapshot.manifest import ChatFormat

BOS = 0


@pytest.fixture
def encoder(tiny_tokenizer, manifest_for):
    """`encoder(...)` makes one."""

    def make(*, tokenizer=None, max_context=512, vocab_size=300, **changes):
        return PromptEncoder(
            tokenizer=tokenizer or tiny_tokenizer,
            manifest=manifest_for(vocab_size, max_context=max_context, **changes),
            max_context=max_context,
            vocab_size=vocab_size,
        )

    return make


def with_bos_of_its_own(tokenizer: Tokenizer) -> Tokenizer:
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    return copy


def plain(encoder, *prompts):
    return asyncio.run(encoder.plain(prompts))


def chat(encoder, *messages, **kwargs):
    kwargs = {"variables": {}, "add_generation_prompt": True, **kwargs}
    return asyncio.run(encoder.chat([Message(**message) for message in messages], **kwargs))


@pytest.mark.parametrize(
    ("own_bos", "add_bos", "leading"), [(False, False, 0), (False, True, 1), (True, True, 1)]
)
def test_a_plain_prompt_gets_one_bos_at_most(encoder, tiny_tokenizer, own_bos, add_bos, leading):
    tokenizer = with_bos_of_its_own(tiny_tokenizer) if own_bos else tiny_tokenizer
    [ids] = plain(encoder(tokenizer=tokenizer, add_bos=add_bos), "hello world")
    text = tiny_tokenizer.encode("hello world").ids
    assert list(ids) == [BOS] * leading + text


def test_a_chat_gets_the_bos_of_its_template_only(encoder, tiny_tokenizer):
    template = "{{ bos_token }}{{ messages[0].content }}"
    ids = chat(
        encoder(
            tokenizer=with_bos_of_its_own(tiny_tokenizer),
            add_bos=True,
            chat=ChatFormat(template=template, bos_token="<s>"),
        ),
        {"role": "user", "content": "hello"},
    )
    assert list(ids) == [BOS, *tiny_tokenizer.encode("hello").ids]


def test_chat_ids_agree_with_transformers(encoder, tiny_tokenizer):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "the quick <|im_end|> ünï 😀"},
    ]
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    )
    theirs = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer).apply_chat_template(
        messages, chat_template=template, add_generation_prompt=True, return_dict=False
    )
    assert list(chat(encoder(chat=ChatFormat(template=template)), *messages)) == list(theirs)


@pytest.mark.parametrize("length", [10, 9000])
def test_long_prompts_are_encoded_alike_on_another_thread(encoder, tiny_tokenizer, length):
    threads = set()

    class Watched:
        def encode(self, text, **kwargs):
            threads.add(threading.current_thread())
            return tiny_tokenizer.encode(text, **kwargs)

    text = "hello " * (length // 6)
    [ids] = plain(encoder(tokenizer=Watched()), text)
    assert list(ids) == tiny_tokenizer.encode(text).ids
    assert (threading.main_thread() in threads) == (length < 100)


def test_what_the_tokenizer_knows_and_the_model_does_not(encoder):
    with pytest.raises(InvalidRequest, match="vocabulary"):
        plain(encoder(vocab_size=100), "hello world, the quick brown fox")


def test_rendered_text_that_cannot_fit(encoder):
    template = "{% for i in range(20000) %}{{ messages[0].content }}{% endfor %}"
    with pytest.raises(ContextLengthExceeded):
        chat(encoder(chat=ChatFormat(template=template)), {"role": "user", "content": "x"})


def test_a_template_that_writes_nothing(encoder):
    with pytest.raises(InvalidRequest, match="no tokens"):
        chat(encoder(chat=ChatFormat(template="")), {"role": "user", "content": "x"})


class TestMessages:
    """What a template is given of a message."""

    JSON = ChatFormat(template="{{ messages | tojson }}")

    def seen(self, encoder, tiny_tokenizer, *messages, template=JSON):
        ids = chat(encoder(chat=template), *messages)
        return tiny_tokenizer.decode(list(ids), skip_special_tokens=False)

    def test_only_what_was_said(self, encoder, tiny_tokenizer):
        seen = self.seen(encoder, tiny_tokenizer, {"role": "user", "content": "a", "name": "Ann"})
        assert seen == '[{"role": "user", "content": "a", "name": "Ann"}]'

    def test_parts_are_lines(self, encoder, tiny_tokenizer):
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        seen = self.seen(encoder, tiny_tokenizer, {"role": "user", "content": parts})
        assert seen == r'[{"role": "user", "content": "a\nb"}]'

    def test_developer_is_system_where_the_template_does_not_know_it(self, encoder, tiny_tokenizer):
        message = {"role": "developer", "content": "a"}
        assert '"role": "system"' in self.seen(encoder, tiny_tokenizer, message)
        knows = ChatFormat(template="{# developer #}{{ messages | tojson }}")
        seen = self.seen(encoder, tiny_tokenizer, message, template=knows)
        assert '"role": "developer"' in seen

    @pytest.mark.parametrize(
        ("arguments", "seen_as"), [('{"a": 1}', '{"a": 1}'), ("{oops", '"{oops"'), ("[]", '"[]"')]
    )
    def test_tool_calls_of_earlier_turns(self, encoder, tiny_tokenizer, arguments, seen_as):
        call = {"id": "c1", "function": {"name": "f", "arguments": arguments}}
        seen = self.seen(
            encoder,
            tiny_tokenizer,
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": "4", "tool_call_id": "c1"},
        )
        assert seen == (
            '[{"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", '
            f'"function": {{"name": "f", "arguments": {seen_as}}}}}]}}, '
            '{"role": "tool", "content": "4", "tool_call_id": "c1"}]'
        )
