from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.data.vocabulary import RESERVED, Vocabulary, tokens


def test_text_is_lower_case_words_and_single_marks_without_line_breaks():
    text = "It's GREAT,<br /><br>isn't it?!  Café\t42"
    assert list(tokens(text)) == ["it's", "great", ",", "isn't", "it", "?", "!", "café", "42"]


def test_frequent_words_come_first_and_ties_are_alphabetical():
    vocabulary = Vocabulary.from_texts(["pear fig fig", "apple kiwi kiwi"], size=100)
    assert vocabulary.words == ("fig", "kiwi", "apple", "pear")


def test_the_size_counts_padding_and_unknown():
    vocabulary = Vocabulary.from_texts(["a a a b b c"], size=4)
    assert vocabulary.words == ("a", "b")
    assert len(vocabulary) == 4


def test_encoding_pads_at_the_end_cuts_at_the_length_and_marks_unknown_words():
    vocabulary = Vocabulary(("a", "b"))
    encoded = vocabulary.encode(["b a", "", "a new b a"], length=3)
    assert encoded.dtype == torch.int32
    assert encoded.tolist() == [[3, 2, 0], [0, 0, 0], [2, 1, 3]]


@given(st.lists(st.text("ab c<br/>'", max_size=12)), st.integers(3, 8), st.randoms())
def test_the_order_of_the_texts_does_not_matter(texts, size, random):
    vocabulary = Vocabulary.from_texts(texts, size)
    random.shuffle(texts)
    assert Vocabulary.from_texts(texts, size) == vocabulary
    assert len(vocabulary.words) <= size - RESERVED
