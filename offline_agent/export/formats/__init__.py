"""Formats of other trainers, by name."""

from __future__ import annotations

from offline_agent.export.format import Format
from offline_agent.export.formats import atif, axolotl, llama_factory, openai, trl, verl

FORMATS: dict[str, Format] = {
    "trl": trl.FORMAT,
    "llama_factory": llama_factory.FORMAT,
    "axolotl": axolotl.FORMAT,
    "verl": verl.FORMAT,
    "openai": openai.FORMAT,
    "atif": atif.FORMAT,
}
