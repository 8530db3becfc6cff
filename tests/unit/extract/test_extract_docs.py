"""The documentation of the extracts is what the code does."""

from __future__ import annotations

from assay.extract.dictionary import make_dictionary, replace_dictionary
from assay.vocab import Screen
from make_results import ROOT

PAGE = ROOT / "docs" / "extracts.md"


def test_the_data_dictionary_is_fresh() -> None:
    """docs/extracts.md has exactly the columns that the code writes."""
    page = PAGE.read_text()
    assert make_dictionary() in page, "make it anew with assay.extract.dictionary.replace_dictionary"
    assert replace_dictionary(page) == page


def test_every_screen_is_documented() -> None:
    """docs/verdicts.md says of each screen when it fails."""
    page = (ROOT / "docs" / "verdicts.md").read_text()
    assert [screen for screen in Screen if f"`{screen}`" not in page] == []
