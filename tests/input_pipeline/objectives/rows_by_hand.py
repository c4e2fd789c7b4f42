"""Ids of short texts, for rows that are written out by hand."""

import numpy as np

from input_pipeline.tokenizers.tokenizer import ByteTokenizer

T = ByteTokenizer()
BOS, EOS, MASK, CLS, SEP = 1, 2, 3, 4, 5
A, B, C, D, E = T.encode("abcde").tolist()
FIRST, SECOND = T.sentinel_ids[:2].tolist()


def rng(seed=0):
    return np.random.default_rng(seed)


def ids(text):
    return T.encode(text)


def at(token):
    """Where a token stands among those that may replace another."""
    return T.text_ids.tolist().index(token)


def check(fields, **expected):
    assert set(fields) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(fields[name], values, err_msg=name)
