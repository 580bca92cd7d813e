"""Ids of pictures: equal exactly where the picture is, as the processor renders them, in no mask, and checked."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from offline_agent import pictures
from offline_agent.errors import DataError
from offline_agent.preferences.dataset.export import trajectory_row
from offline_agent.records import Context, Step, Task, ToolCall, Trajectory, Verdict
from offline_agent.rendering import certificate
from offline_agent.rendering.columns import check_tokens
from offline_agent.rendering.renderer import Renderer
from offline_agent.rendering.vision import PATCH
from offline_agent.training.data.conversations import Encoder
from offline_agent.training.scratch import TEMPLATE
from tests.helpers import seeing
from tests.helpers.pictures import png

A, B = png((200, 0, 0)), png((0, 200, 0))


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    yield
    pictures._kept.clear()


@pytest.fixture(scope="module", params=["text", seeing.IN_PLACE, seeing.FIRST, "whole"])
def parts(request: pytest.FixtureRequest) -> tuple[Any, Renderer]:
    template = seeing.of_parts(request.param) if "parts" in request.param else TEMPLATE.read_text(encoding="utf-8")
    if request.param == "whole":  # each prompt is rendered anew
        template = "{{- 'Turns: ' ~ (messages | length) ~ '\\n' }}" + template
    return seeing.made(template=template)[1:]


def played(renderer: Renderer, first: bytes, second: bytes) -> Trajectory:
    """Return an episode with a picture in the first message and one in a tool's answer."""
    context = Context(Task("t", "train", {}), "Name it.", (), f"Now {pictures.mark(first)} see, {pictures.mark(first)}")
    steps = []
    for colour, shown in (("red", f"{pictures.mark(second)}\nAnd?"), ("green", f"Done {pictures.mark(second)}")):
        action = renderer.parse(
            renderer.encode_action(renderer.parse_text(renderer.write("", ToolCall("say", {"colour": colour}))))
        )
        steps.append(Step(action, colour, shown))
        context = context.child(action, shown)
    return Trajectory(context, tuple(steps), Verdict(1.0, True, "v"), True, False, "rollout")


def test_ids_are_those_of_the_processor_but_for_its_placeholders(parts: tuple[Any, Renderer]) -> None:
    processor, renderer = parts
    context = played(renderer, A, B).context
    ids = renderer.context_ids(context)
    messages: list[Any] = []
    for message in context.messages():
        words = pictures.split(message["content"])
        listed = [{"type": "image"} if at % 2 else {"type": "text", "text": one} for at, one in enumerate(words)]
        text = "<image>".join(words[::2])
        messages.append({**message, "content": listed if renderer._template.dialect.parts else text})
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    images = [Image.open(io.BytesIO(pictures.data(hash))) for hash in pictures.in_messages(context.messages())]
    encoded = processor(text=[text], images=images, add_special_tokens=False)
    assert renderer.vision.plain(ids) == list(encoded["input_ids"][0])
    assert renderer.vision.pictures_in(ids) == pictures.in_messages(context.messages())
    assert renderer.decode(ids).count("<image>") == 4 * 4


def test_equal_ids_are_equal_pictures(parts: tuple[Any, Renderer]) -> None:
    renderer = parts[1]
    shades = [png((r, g, 7)) for r in range(0, 250, 50) for g in range(0, 250, 50)]
    ids = [renderer.vision.ids(pictures.named(pictures.mark(shade))[0]) for shade in shades]
    assert len({token for one in ids for token in one}) == sum(map(len, ids)) and min(map(min, ids)) >= PATCH
    again = seeing.made(1)[2]  # of another model
    assert [again.vision.ids(pictures.named(pictures.mark(shade))[0]) for shade in shades] == ids
    assert len({again.tokenizer_hash, renderer.tokenizer_hash, Renderer(again.tokenizer).tokenizer_hash}) >= 2


def test_a_turn_of_the_policy_shows_no_picture(parts: tuple[Any, Renderer]) -> None:
    renderer = parts[1]
    said = renderer.parse_text(f"I saw {pictures.mark(A)}.")
    context = Context(Task("t", "train", {}), "", (), "Hello").child(said, "Well?", "user")
    assert max(renderer.context_ids(context)) < renderer.vocab_size
    assert pictures.named(renderer.decode(renderer.action_ids(said)))


def test_rows_are_certified_and_every_edit_is_found(parts: tuple[Any, Renderer]) -> None:
    renderer = parts[1]
    row = trajectory_row(played(renderer, A, B), renderer)
    ids, mask = row["input_ids"], row["action_mask"]
    assert sum(token >= PATCH for token in ids) == (12 if renderer.appends else 8 + 12)
    assert not any(bit for token, bit in zip(ids, mask, strict=True) if token >= PATCH)
    data = certificate.parse(row["certificate"])
    assert data["pictures"] == sorted({pictures.named(pictures.mark(one))[0] for one in (A, B)})
    at = next(place for place, token in enumerate(ids) if token >= PATCH)

    def edited(**changes: Any) -> dict[str, Any]:
        """Return the row with its ids changed, and a certificate that was made for them."""
        made = copy.deepcopy(row) | changes
        entry = certificate.parse(row["certificate"])
        entry["sequence"]["ids"] = certificate.ids_hash(made["input_ids"])
        entry |= made.pop("facts", {})
        made["certificate"] = certificate.seal(certificate.json.dumps(entry), made)
        return made

    check_tokens(renderer, edited())
    swapped = [*ids[:at], ids[at + 1], ids[at], *ids[at + 2 :]]
    with pytest.raises(DataError, match="not all there, each once, in order"):
        check_tokens(renderer, edited(input_ids=swapped))
    other = [ids[at] + 1 if place == at else token for place, token in enumerate(ids)]
    with pytest.raises(DataError, match="not all there"):
        check_tokens(renderer, edited(input_ids=other))
    with pytest.raises(DataError, match="does not name"):
        check_tokens(renderer, edited(facts={"pictures": data["pictures"][:1]}))
    messages = copy.deepcopy(row["messages"])
    messages[1]["content"] = messages[1]["content"].replace(pictures.mark(A), pictures.mark(B))
    with pytest.raises(DataError, match="are not those of its messages"):
        check_tokens(renderer, edited(messages=messages))
    span = [at, at + 4]
    entry = data["sequence"] | {"spans": [span, *data["sequence"]["spans"]], "trainable": 4 + sum(mask)}
    entry["texts"] = [certificate.text_hash("<image>" * 4), *entry["texts"]]
    with pytest.raises(DataError, match="its sequence mask counts a patch of a picture"):
        mask = certificate.mask_of(entry["spans"], len(ids))
        check_tokens(renderer, edited(facts={"sequence": entry}, action_mask=mask))
    blind = Renderer(renderer.tokenizer)
    blind.tokenizer_hash = renderer.tokenizer_hash
    with pytest.raises(DataError, match="leave the vocabulary"):
        check_tokens(blind, row)
    with pytest.raises(DataError, match="reads text alone"):
        blind.context_ids(played(renderer, A, B).context)


@pytest.mark.parametrize(
    ("anew", "shown"),
    [
        (["compact", None], [f"Summary {pictures.mark(B)}", "end"]),
        (["compact", None], [f"Summary {pictures.mark(A)}", "end"]),
        (["enter", None, "leave", None], ["Sub", f"see {pictures.mark(B)}", "back", "end"]),
    ],
)
def test_pictures_before_a_renewed_history_are_absent_after_it(anew: Any, shown: list[str]) -> None:
    renderer = seeing.made()[2]
    context, steps = Context(Task("t", "train", {}), "Name it.", (), f"Now {pictures.mark(A)}"), []
    for how, text in zip(anew, shown, strict=True):
        said = renderer.write("", ToolCall("say", {"colour": "red"}))
        action = renderer.parse(renderer.encode_action(renderer.parse_text(said)))
        steps.append(Step(action, "say", text, anew=how))
        context = context.child(action, text, anew=how)
    row = trajectory_row(Trajectory(context, tuple(steps), Verdict(1.0, True, "v"), True, False, "rollout"), renderer)
    check_tokens(renderer, row)
    assert row["input_ids"] is not None


def test_messages_alone_are_encoded_with_the_same_ids(parts: tuple[Any, Renderer]) -> None:
    renderer = parts[1]
    row = trajectory_row(played(renderer, A, B), renderer)
    made = Encoder(renderer).trajectory(row["messages"], None, False)
    assert made["input_ids"] == row["input_ids"] and made["action_mask"] == row["action_mask"]
