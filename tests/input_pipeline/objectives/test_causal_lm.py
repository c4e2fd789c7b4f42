from input_pipeline.objectives.causal_lm import causal_lm
from tests.input_pipeline.objectives.rows_by_hand import BOS, A, B, C, T, check, ids, rng


def test_causal_lm_by_hand():
    check(
        causal_lm({"text": ids("abc")}, rng(), tokenizer=T),
        inputs=[BOS, A, B],
        targets=[A, B, C],
        weights=[1, 1, 1],
    )
