"""Chat templates become the text around pairs, in a sandbox."""

from __future__ import annotations

import pytest

from qdqbert import CheckpointError
from qdqbert.encoders.checkpoint.chat_template import Chat, read_pair_template


def read(template: str, **settings):
    files = {"chat_template.jinja": template}
    prompt = settings.pop("default_prompt", "")
    return read_pair_template(
        Chat(options=settings.pop("options", {})),
        files.get,
        "",
        settings,
        default_prompt=prompt,
        name="model",
    )


def test_variables_and_special_tokens_are_those_of_the_checkpoint() -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}={{ m.content }}{{ end }}{% endfor %}"
    )
    made = read(template, bos_token={"content": "<s>"}, options={"end": ";"}, default_prompt="p")
    assert made.render(("q", "d")) == "<s>system=p;query=q;document=d;"
    assert made.render(("q", "d"), "") == "<s>query=q;document=d;"


def test_a_query_can_be_there_twice_and_blanks_can_be_removed() -> None:
    made = read(
        "{% set q = messages[-2].content | trim %}"
        "{{ q }} {{ q }} {{ messages[-1].content.lstrip() }}"
    )
    assert made.render((" q ", " d ")) == "q q d "


@pytest.mark.parametrize(
    ("template", "words"),
    [
        *(
            (f"{{% for m in messages %}}{{{{ {change} }}}}{{% endfor %}}", "changes the texts")
            for change in (
                "m.content[:20]",
                "m.content[:50_000]",
                "m.content.strip('\\n')",
                "m.content | replace('\\n\\n', '\\n')",
                "m.content | replace('\\r\\n', '\\n')",
                "m.content | replace('  ', ' ')",
                "m.content | replace('<|endoftext|>', '')",
                "m.content | replace('<own>', '')",
            )
        ),
        ("{{ messages[0].content }}", "does not render the role 'document'"),
        ("{{ messages[1].content }}|{{ messages[0].content }}", "after the query"),
        ("{{ 'x' * 300000 }}", "longer than"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "time"),
        ("{{ ('x' * 10**11) * 10**9 }}", "MemoryError|OverflowError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe"),
        ("{{ strftime_now('%Y') }}", "depends on the date"),
        ("{% for %}", "TemplateSyntaxError"),
    ],
)
def test_a_template_that_does_more_than_copy_texts_is_refused(template, words) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(template, eos_token="<own>")


def test_a_template_that_cuts_on_the_left_is_refused() -> None:
    with pytest.raises(CheckpointError, match="truncation_side"):
        read("{% for m in messages %}{{ m.content }}{% endfor %}", truncation_side="left")


def test_a_prompt_that_the_template_does_not_take_is_refused() -> None:
    template = (
        "{% if messages | length > 2 %}{{ raise_exception('no system') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    assert read(template).prompted is None
    with pytest.raises(CheckpointError, match="no system"):
        read(template, default_prompt="p")
