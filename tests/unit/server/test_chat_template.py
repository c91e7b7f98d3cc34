"""Rendering agrees with transformers, and a template can do no harm."""

import time

import pytest
from transformers import PreTrainedTokenizerFast

from glowplug.errors import InvalidRequest
from runtime.server.chat_template import ChatTemplate, OutputTooLong
from snapshot.manifest import ChatFormat

CHATML_WITH_DEFAULT_SYSTEM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
"""
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") if strftime_now is defined else "26 Jul 2024" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none %}
    {{- "tools" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'}}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- for tool_call in message.tool_calls %}
            {{- tool_call.function.name + "(" + (tool_call.function.arguments | tojson) + ")" }}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
QWEN3 = """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- generation %}
        {%- set given = message.reasoning_content %}
        {%- set reasoning = given if given is string else '' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.last_query_index and reasoning %}
            {{- '<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {{- message.content.split('</think>')[-1].lstrip('\n') + '<|im_end|>\n' }}
        {%- endgeneration %}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role == "tool" %}{%- continue %}{%- endif %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response>' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""
TOOLBOX = (
    "{{ messages[0] | tojson }}{{ messages[0] | tojson(indent=2) }}"
    "{{ dict(a=1, b='<&>') | tojson }}"
    "{% set ns = namespace(found=false) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.found = true %}{% break %}{% endif %}{% endfor %}{{ ns.found }}"
    "{% macro shout(text) %}{{ text | upper }}!{% endmacro %}{{ shout(messages[0].content) }}"
)

CONVERSATIONS = {
    "one": [{"role": "user", "content": "Hello <b>&amp; 'ünï' 😀"}],
    "system": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hi "},
    ],
    "turns": [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>x</think>\n2", "reasoning_content": "easy\n"},
        {"role": "user", "content": "and 2+2?"},
    ],
    "ends with the assistant": [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2", "reasoning_content": "\nhm"},
    ],
}


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.parametrize(
    "template",
    [CHATML_WITH_DEFAULT_SYSTEM, MISTRAL, LLAMA3, QWEN3, TOOLBOX],
    ids=["chatml", "mistral", "llama3", "qwen3", "toolbox"],
)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False, "date_string": "1 May"}])
def test_agrees_with_transformers(
    tiny_tokenizer, conversation, template, add_generation_prompt, variables
):
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer, bos_token="<s>", eos_token="<|im_end|>"
    ).apply_chat_template(
        conversation,
        chat_template=template,
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
        **variables,
    )
    ours = ChatTemplate(
        ChatFormat(template=template, bos_token="<s>", eos_token="<|im_end|>")
    ).render(
        conversation,
        variables=variables,
        add_generation_prompt=add_generation_prompt,
        max_chars=10_000,
    )
    assert ours == theirs


def render(template, *, max_chars=10_000, timeout_s=5.0, content="hi"):
    return ChatTemplate(ChatFormat(template=template)).render(
        [{"role": "user", "content": content}],
        variables={},
        add_generation_prompt=True,
        max_chars=max_chars,
        timeout_s=timeout_s,
    )


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{{ messages[0].nothing.more }}", "no attribute 'nothing'"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages + 1 }}", "failed on them"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].update(a=1) }}", "unsafe"),
        ("{{ dict.__init__() }}", "unsafe"),
        ("{% set ns = namespace(__class__=1) %}", "__class__"),
        ("{{ range(10**9) | list }}", "Range too big"),
        ("{% include 'other' %}", "no loader"),
        ("{% if %}", "broken"),
        ("{{ unknown_function() }}", "undefined"),
    ],
)
def test_what_a_template_does_wrong_is_the_clients_to_read(template, message):
    with pytest.raises(InvalidRequest) as caught:
        render(template)
    assert message in caught.value.message
    assert caught.value.param == "messages"
    assert len(caught.value.message) <= 1000


def test_the_messages_are_data_and_not_template():
    content = "{{ 7 * 7 }}{% raw %}{{ bos_token }}"
    assert render("{{ messages[0].content }}", content=content) == content


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}0123456789{% endfor %}",
        "{% for a in range(9999) %}{{ messages[0].content * 100 }}{% endfor %}",
    ],
)
def test_output_is_bounded(template):
    with pytest.raises(OutputTooLong):
        render(template)


@pytest.mark.parametrize(
    "template",
    [
        "{% set xs = range(99999) | list %}"
        "{% for a in xs %}{% for b in xs %}{% for c in xs %}{% endfor %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
    ids=["loops", "macros"],
)
def test_time_is_bounded(template):
    began_s = time.monotonic()
    with pytest.raises(InvalidRequest, match="takes too long"):
        render(template, timeout_s=0.1)
    assert time.monotonic() - began_s < 2
