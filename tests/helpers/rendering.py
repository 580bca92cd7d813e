"""Tokenizers and chat templates for tests: small, made here, one per family and one per vice."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from offline_agent.records import Context, Task

CORPUS = [
    'I look up the red shoes, size 42, price 19.99. {"name": "search", "arguments": {"query": "red shoes"}}',
    "<tool_call>\n</tool_call>\n<tool_response>\nuser assistant system tool",
    "ein Käse, 漢字 und 🙂 im Körbchen; the quick brown fox jumps over the lazy dog 0123456789",
]
CONTROLS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
LLAMA_CONTROLS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]

CHATML_TURNS = """\
{%- for t in tools or [] %}{{- '<|im_start|>system\\n' + (t | tojson) + '<|im_end|>\\n' }}{%- endfor %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
    {%- if message.content %}{{- '\\n' }}{%- endif %}
    {{- '<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
# Qwen 3's habit: what was thought before the last user turn is dropped.
FORGETFUL = """\
{%- for t in tools or [] %}{{- '<|im_start|>system\\n' + (t | tojson) + '<|im_end|>\\n' }}{%- endfor %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and loop.index0 < ns.last and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content }}
    {%- for call in message.tool_calls or [] %}
        {%- if content %}{{- '\\n' }}{%- endif %}
        {{- '<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
# The number of turns is written at the top, so every turn changes the beginning.
COUNTING = "{{- 'Turns: ' ~ (messages | length) ~ '\\n' }}" + CHATML_TURNS
LLAMA = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}{%- set system = messages[0].content | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' + system + '<|eot_id|>' }}
{{- '<|start_header_id|>user<|end_header_id|>\\n\\n' }}
{%- if tools %}{%- for t in tools %}{{- (t | tojson(indent=4)) + '\\n\\n' }}{%- endfor %}{%- endif %}
{{- (messages[0].content | trim) + '<|eot_id|>' }}
{%- for message in messages[1:] %}
    {%- if message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + (message.content | tojson) + '<|eot_id|>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' + message.content }}
        {%- if message.tool_calls %}
            {%- set call = message.tool_calls[0].function %}
            {%- if message.content %}{{- '\\n' }}{%- endif %}
            {{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}' }}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
        {{- (message.content | trim) + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
QWEN25 = """\
{%- set system = messages[0].content if messages[0].role == 'system' else 'Help.' %}
{{- '<|im_start|>system\\n' + system }}
{%- if tools %}
    {{- '\\n\\n# Tools\\n<tools>' }}{%- for t in tools %}{{- '\\n' + (t | tojson) }}{%- endfor %}{{- '\\n</tools>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Find products. Never write <|im_end|> or <|eot_id|>.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "description": 'What, "quoted" or <tool_call>.'}},
                "required": ["query"],
            },
        },
    },
)


QWEN_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level(
    controls: list[str], template: str, normalizer: Any = None, plain: tuple[str, ...] = (), split: str | None = None,
    more: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """Return a byte-level BPE tokenizer; `plain` names the added tokens that are not special.

    `split` is a pattern of words, such as Qwen's, which takes line breaks to the punctuation before them.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split is not None:
        words = pre_tokenizers.Split(Regex(split), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    if normalizer is not None:
        backend.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=800 if more else 400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator([*CORPUS, *more, *([".\n\n"] * 9 if split else [])], trainer)
    backend.add_tokens([AddedToken(text, special=text not in plain, normalized=False) for text in controls])
    end = next(text for text in controls if text in ("<|im_end|>", "<|eot_id|>"))
    begin = controls[0] if end == "<|eot_id|>" else None
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=end, pad_token=end, bos_token=begin)
    tokenizer.chat_template = template
    return tokenizer


def metaspace(template: str) -> Any:
    """Return a Unigram tokenizer in the SentencePiece manner, whose vocabulary holds its control strings as words."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["▁look", "▁the", "▁red", "shoes", "▁", "er", "in", "st", "se"]
    characters = sorted(
        {*"".join(CORPUS), *"<|_>/ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz\n\t'"} - {" ", "▁"}
    )
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    pieces = ["<unk>", *CONTROLS, *bytes_, *words, *characters]
    vocab = [(piece, 0.0 if piece == "<unk>" else -1.0 - 1e-4 * index) for index, piece in enumerate(pieces)]
    backend = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROLS])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", unk_token="<unk>")
    tokenizer.chat_template = template
    return tokenizer


@cache
def qwen() -> Any:
    """Return a tokenizer with Qwen 2.5's way of writing turns, `<tool_call>` an ordinary added token, and NFC."""
    from tokenizers import normalizers

    return byte_level(CONTROLS, QWEN25, normalizers.NFC(), ("<tool_call>", "</tool_call>", "<think>", "</think>"))


@cache
def llama() -> Any:
    """Return a tokenizer with Llama 3's way of writing turns: trimmed users, JSON tool replies, bare JSON calls."""
    return byte_level(LLAMA_CONTROLS, LLAMA)


def root(observation: str = "Find red shoes.", system: str = "You shop.", tools: Any = TOOLS) -> Context:
    """Return the start of an episode."""
    return Context(Task("t-1", "train", {}), system, tools, observation)


TRL_CONTROLS = re.compile(
    r"<\|[^<>|\s]{1,40}\|?>|<[a-z_]{1,20}\|>|<｜[^<>]{1,40}｜>|<\|\"\|>|\[gMASK\]|</s>"
    r"|</?(?:think|tool_call|tool_response|arg_key|arg_value|start_of_turn|end_of_turn|end_of_utterance|sop)>"
)


@cache
def trl_templates() -> dict[str, str]:
    """Return the texts of the chat templates of real models that TRL ships, by name."""
    import trl

    folder = Path(trl.__file__).parent / "chat_templates"
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}


@cache
def of_trl(name: str, *more: str) -> Any:
    """Return a byte-level tokenizer with one of them, and the control tokens that it writes; it learns `more` words."""
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_str(_trained(more))
    controls = ["<bos>", "<eos>", *sorted(set(TRL_CONTROLS.findall(trl_templates()[name])))]
    plain = re.compile(r"</?(?:think|tool_\w+|arg_\w+)>")
    backend.add_tokens([AddedToken(text, special=not plain.fullmatch(text), normalized=False) for text in controls])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", pad_token="<eos>"
    )  # fmt: skip
    tokenizer.chat_template = trl_templates()[name]
    return tokenizer


@cache
def _trained(more: tuple[str, ...]) -> str:
    return str(byte_level(["<|im_end|>"], "", more=more).backend_tokenizer.to_str())


def context_text(renderer: Any, context: Context) -> str:
    """Return a whole prompt's text."""
    return str(renderer._appended_text(context) if renderer.appends else renderer.decode(renderer.context_ids(context)))
