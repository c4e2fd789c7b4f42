from input_pipeline.objectives.seq2seq import seq2seq
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from tests.input_pipeline.objectives.rows_by_hand import (
    BOS,
    CLS,
    EOS,
    A,
    B,
    C,
    D,
    E,
    T,
    check,
    ids,
    rng,
)


def test_seq2seq_by_hand():
    row = {"source": ids("ab"), "target": ids("cde")}
    check(
        seq2seq(row, rng(), tokenizer=T),
        encoder_inputs=[A, B, EOS],
        inputs=[BOS, C, D, E],
        targets=[C, D, E, EOS],
        weights=[1, 1, 1, 1],
    )


class BartTokenizer(ByteTokenizer):
    text_start_ids = (CLS,)


def test_rows_of_bart_begin_with_its_start_on_both_sides():
    row = {"source": ids("ab"), "target": ids("cde")}
    check(
        seq2seq(row, rng(), tokenizer=BartTokenizer()),
        encoder_inputs=[CLS, A, B, EOS],
        inputs=[BOS, CLS, C, D, E],
        targets=[CLS, C, D, E, EOS],
        weights=[1, 1, 1, 1, 1],
    )
