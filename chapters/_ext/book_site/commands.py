"""Where lines may not break: at a hyphen in commands and titles, and between a formula and the mark after it."""

import re
from typing import Any

BLOCK = re.compile(
    r'(<div class="highlight-bash[^>]*><div class="highlight"><pre>)(.*?)(</pre>)', re.DOTALL
)
# A word of the text between tags. One that is longer than a phone's line may still break.
WORD = re.compile(r"(?<![^\s>])[^\s<>]*-[^\s<>]*(?![^<>]*>)")
LONGEST = 36
# A word of a sentence, such as an option.
INLINE = re.compile(r'<span class="pre">([^<\s]*-[^<\s]*)</span>')
LONGEST_INLINE = 20
# MathJax puts a formula into a box, and a line may break before and after a box.
MATHS = r'<span class="math notranslate nohighlight">[^<]*</span>'
FORMULA = re.compile(rf"\({MATHS}[.,;:?!)]*|{MATHS}[.,;:?!)]+")
TITLE = re.compile(r"(<h1>)(.*?)(</h1>)", re.DOTALL)


def keep_words(
    _app: Any, _page: str, _template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Keep the words of a page's commands and of its title whole, and its formulas with their marks."""
    if doctree is not None:
        for blocks in (BLOCK, TITLE):
            context["body"] = blocks.sub(
                lambda block: block[1] + WORD.sub(_whole, block[2]) + block[3], context["body"]
            )
        context["body"] = INLINE.sub(_whole_inline, context["body"])
        context["body"] = FORMULA.sub(r'<span class="command-word">\g<0></span>', context["body"])


def _whole(word: re.Match[str]) -> str:
    return f'<span class="command-word">{word[0]}</span>' if len(word[0]) <= LONGEST else word[0]


def _whole_inline(word: re.Match[str]) -> str:
    return (
        word[0].replace('"pre"', '"pre command-word"')
        if len(word[1]) <= LONGEST_INLINE
        else word[0]
    )
