"""The keys of `export`."""

from __future__ import annotations

from offline_agent.sections import Section, key


class ExportConfig(Section):
    """Keys of `export`."""

    run_dir: str = key("", "the finished run whose rows are exported")
    format: str = key("", "the trainer or format: trl, llama_factory, axolotl, verl, openai, atif")
    out: str | None = key(None, "the folder that is written, new or empty; null = RUN_DIR-FORMAT, beside the run")
    tokenizer: str | None = key(
        None, "path or hub name of the tokenizer, for axolotl and verl: that of the rows' token ids, or, where rows "
        "have messages alone, the one that renders them",
    )  # fmt: skip
    chat_template: str | None = key(None, "replaces the tokenizer's: compact, qwen, llama3, plain, a file, or its text")
