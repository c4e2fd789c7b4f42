import numpy as np
import pytest

from inference.output_text import cut, settled, stop_sequences, to_text, up_to_end
from input_pipeline.tokenizers.published_files import open_tokenizer
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from input_pipeline.tokenizers.train_vocabulary import train_tokenizer
from tests.input_pipeline.tokenizers.make_tokenizer_fixtures import FIXTURES

T = ByteTokenizer()
PAD, EOS = T.pad_id, T.eos_id


def test_an_answer_goes_up_to_its_end():
    def tokens_up_to_end(*tokens):
        return up_to_end(np.array(tokens), T).tolist()

    assert tokens_up_to_end(9, 8, EOS, PAD, PAD) == [9, 8, EOS]
    assert tokens_up_to_end(9, 8, EOS, 7, EOS) == [9, 8, EOS]
    assert tokens_up_to_end(9, 8, PAD, PAD) == [9, 8]  # ended by a stop sequence
    assert tokens_up_to_end(9, PAD, 8) == [9, PAD, 8]
    assert tokens_up_to_end(9, 8, 7) == [9, 8, 7]
    assert tokens_up_to_end(PAD, PAD) == []


@pytest.mark.parametrize("name", ["llama/tokenizer.model", "t5/spiece.model", "gpt2/encoder.json"])
def test_generated_text_is_decoded_in_the_context_of_the_prompt(name):
    tokenizer = open_tokenizer(FIXTURES / name)
    ids = tokenizer.encode("the one and the other")
    for place in range(1, len(ids)):
        before, after = ids[:place], ids[place:]
        assert tokenizer.decode(before) + to_text(after, tokenizer, preceding=before) == (
            "the one and the other"
        )
    alone = tokenizer.encode("the one")
    assert to_text(alone, tokenizer) == "the one"


def test_sentinels_are_shown_on_request():
    first, third = T.sentinel_ids[[0, 2]]
    tokens = np.array([first, *T.encode("né"), third, *T.encode("b"), EOS])
    assert to_text(tokens, T, sentinels=True) == "<extra_id_0>né<extra_id_2>b"
    assert to_text(tokens, T) == "néb"
    assert to_text(tokens[:0], T, sentinels=True) == ""


def test_stop_strings_become_token_sequences():
    assert stop_sequences(["\n\n", "é"], T) == (
        tuple(T.encode("\n\n").tolist()),
        tuple(T.encode("é").tolist()),
    )
    tokenizer = train_tokenizer("wordpiece", ["a cat sat"] * 9, 300)
    # It would end at any "cat", and knows no "ж" at all.
    assert stop_sequences(["  cat", "ж", " "], tokenizer) == ()
    assert stop_sequences(["cat"], tokenizer) == (tuple(tokenizer.encode("cat").tolist()),)


def test_the_first_stop_string_cuts():
    assert cut("one two three", ["three", "two"]) == "one "
    assert cut("one two", ["ne t", "one two three"]) == "o"
    assert cut("one", ["two"]) == cut("one", []) == "one"


@pytest.mark.parametrize("stops", [[], ["–x"], ["né", "a\n"], ["aaab"]])
def test_streamed_text_is_never_taken_back(stops):
    """Byte by byte, half of the characters being longer than a byte."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        text = "".join(rng.choice(list("aaabnéж–👩\nx"), 30))
        ids, shown = T.encode(text), ""
        for end in range(1, len(ids) + 1):
            so_far = cut(T.decode(ids[:end]), stops)
            more = settled(so_far, stops)
            if so_far != T.decode(ids[:end]):
                break
            assert more.startswith(shown), "nothing is taken back"
            shown = more
        final = cut(text, stops)
        assert final.startswith(shown)
        longest = max(map(len, stops), default=1)
        assert len(final) - len(shown) < longest, "no more is held back than need be"
