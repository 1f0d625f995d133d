"""Sentences of the documentation are short, and avoid constructions that readers found hard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[1]
NOT_HELD = ("docs/results", "docs/reference/configuration")
"""Generated folders: results are held by their own tests, settings' pages by their docstrings."""
PAGES = sorted(
    path
    for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    if not path.relative_to(ROOT).as_posix().startswith(NOT_HELD)
)

MAX_WORDS = 40
MAX_MEDIAN = 18
MAX_TOTAL = 45_000
"""Words of all pages, without tables and code."""

REFUSED = {
    r"\b(?:is|are|was|were|not) to be had\b": "not available",
    r"\bnone: none is\b": "say what `none` does: `none` disables it",
    r"\bof (?:which|whom) (?:one|none|each|both)\b": "begin a new sentence: 'One of them ...', 'Each ...'",
    r"\bWhether who\b": "an imperative: 'Exclude workers that ...'",
    r"\bwhat (?:becomes|became|becoming) of\b": "what happens to",
    r"\bwhat came of\b": "the result, or what happened",
    r"\bbut for (?:what|the|those|that)\b": "except",
    r"\bnobody's business\b": "private",
    r"\bsay yes\b|\bsaid yes\b": "approve",
    r"\bgone on from\b|\bgoes? on from\b|\bgoing on from\b": "resume from",
    r"\bis no other than\b|\bno other than\b": "is the same as",
    r"\banew\b": "again, or a new ...",
    r"^(?:Not|Refused|Left out) (?:\w+ )?(?:is|are)\b": "put the subject first: 'X is refused'",
    r"\bof one's own\b": "your own",
    r"\bhouseholds?\b|\bstand-ins?\b": "actor host, proxy",
}
"""A construction that is refused (a regular expression) and what to write instead."""

ABBREVIATIONS = (
    " e.g",
    " i.e",
    " etc",
    " vs",
    " cf",
    " Eq",
    " Eqs",
    " Fig",
    " Figs",
    " Sec",
    " Alg",
    " al",
    " p",
    " pp",
)
"""Words before a full stop that ends no sentence."""
FENCE = re.compile(r"\s*(`{3,}|~{3,})")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
BOUNDARY = re.compile(r"(?<=[.!?])[)\"*_]*\s+(?=[\"*_(\[]*[A-Z0-9])|(?<=[.!?]\*\*)\s+")


def paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs and list items of a Markdown page, without fences, indented code, headings, tables, comments."""
    lines: list[str] = []
    fence, listed, block = "", False, False
    for line in [*re.sub(r"<!--.*?-->", "", text, flags=re.S).splitlines(), ""]:
        mark = FENCE.match(line)
        if fence or mark:
            if mark and (not fence or mark[1].startswith(fence)):
                fence = "" if fence else mark[1]
            bare = True
        elif line.startswith(("!!!", "???", "===")):
            block, bare = True, True
        else:
            block = block and (not line.strip() or line.startswith("    "))
            indented = line.startswith(("    ", "\t")) and not (listed or block or lines)
            bare = not line.strip() or indented or line.lstrip().startswith(("#", "|", ":::", "![", "---"))
            listed = bool(ITEM.match(line)) or (listed and (not line.strip() or line.startswith("  ")))
        if lines and (bare or ITEM.match(line)):
            yield " ".join(lines)
            lines = []
        if not bare:
            lines.append(ITEM.sub("", line, count=1).strip())


def sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph; a link is its text."""
    plain = re.sub(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", paragraph)
    code: list[str] = []

    def hide(found: re.Match[str]) -> str:
        code.append(found[0])
        return f"CODE{len(code) - 1}"

    plain = re.sub(r"(`+).+?\1|\$[^$]+\$", hide, plain)
    start = 0
    for end in BOUNDARY.finditer(plain):
        if not plain[start : end.start()].rstrip(".").endswith(ABBREVIATIONS):
            yield restored(plain[start : end.end()].strip(), code)
            start = end.end()
    if plain[start:].strip():
        yield restored(plain[start:].strip(), code)


def restored(sentence: str, code: list[str]) -> str:
    return re.sub(r"CODE(\d+)", lambda found: code[int(found[1])], sentence)


def length(sentence: str) -> int:
    """Words of a sentence; inline code is one word, and signs alone are none."""
    return sum(bool(re.search(r"\w", word)) for word in re.sub(r"(`+).+?\1|\$[^$]+\$", "code", sentence).split())


def page_sentences(page: Path) -> list[str]:
    return [sentence for paragraph in paragraphs(page.read_text()) for sentence in sentences(paragraph)]


def test_what_is_a_sentence() -> None:
    text = (
        "# A heading that is left out. Really.\n\nOne `a.B c d` here. Two, e.g. This; see\n[a link](x.md). "
        "`Code` starts one.\n**Bold.** after it.\n\n- an item\n  goes on\n- another\n\n      code in the item stays\n\n"
        "| a | table |\n\n    code\n\n```sh\ntext. More.\n```\n1. First\n\n!!! note\n    Inside a box.\n"
    )
    found = [sentence for paragraph in paragraphs(text) for sentence in sentences(paragraph)]
    assert found == [
        "One `a.B c d` here.",
        "Two, e.g. This; see a link.",
        "`Code` starts one.",
        "**Bold.**",
        "after it.",
        "an item goes on",
        "another",
        "code in the item stays",
        "First",
        "Inside a box.",
    ]
    assert [length(sentence) for sentence in found] == [3, 6, 3, 1, 2, 4, 1, 5, 1, 3]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_sentence_is_long(page: Path) -> None:
    long = [(length(sentence), sentence) for sentence in page_sentences(page)]
    found = [f"{words} words: {sentence}" for words, sentence in long if words > MAX_WORDS]
    name = page.relative_to(ROOT)
    assert not found, f"{name}: split each sentence of more than {MAX_WORDS} words\n" + "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_construction_is_refused(page: Path) -> None:
    found = [
        f"'{match[0]}' (better: {better}): {sentence}"
        for sentence in page_sentences(page)
        for pattern, better in REFUSED.items()
        if (match := re.search(pattern, re.sub(r"`[^`]*`", "code", sentence), flags=re.I))
    ]
    assert not found, f"{page.relative_to(ROOT)}: rewrite\n" + "\n".join(found)


def test_half_of_the_sentences_are_short() -> None:
    counts = {page: [length(sentence) for sentence in page_sentences(page)] for page in PAGES}
    longest = sorted(((median(words), page) for page, words in counts.items() if words), reverse=True)[:5]
    words = median(count for page in counts.values() for count in page)
    wordiest = "\n".join(f"{page.relative_to(ROOT)}: {count}" for count, page in longest)
    assert words <= MAX_MEDIAN, f"median sentence: {words} words, at most {MAX_MEDIAN}; the wordiest pages:\n{wordiest}"


def test_the_pages_can_be_read() -> None:
    words = {page: sum(length(sentence) for sentence in page_sentences(page)) for page in PAGES}
    longest = "\n".join(
        f"{page.relative_to(ROOT)}: {words[page]}" for page in sorted(PAGES, key=lambda page: -words[page])[:5]
    )
    assert sum(words.values()) <= MAX_TOTAL, f"the pages have {sum(words.values())} words; the longest:\n{longest}"
