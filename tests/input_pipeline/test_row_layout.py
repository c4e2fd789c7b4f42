import numpy as np
import pytest

from input_pipeline.row_layout import RowLayout

SHORT = {"inputs": np.array([5, 6]), "weights": np.array([True, False])}
LONG = {"inputs": np.array([7, 8, 9]), "weights": np.array([1, 1, 1])}


def check(row, **expected):
    assert set(row) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(row[name], values, err_msg=name)
        assert row[name].dtype == (np.float32 if name == "weights" else np.int32), name


def test_one_example_is_padded():
    layout = RowLayout(4, 0, segments=True, packed=False)
    check(layout.row([SHORT]), inputs=[5, 6, 0, 0], weights=[1, 0, 0, 0], segment_ids=[1, 1, 0, 0])


def test_text_read_from_left_to_right_needs_no_segments():
    layout = RowLayout(4, 0, segments=False, packed=False)
    check(layout.row([SHORT]), inputs=[5, 6, 0, 0], weights=[1, 0, 0, 0])


@pytest.mark.parametrize("segments", [True, False])
def test_packed_examples_have_segment_ids_even_for_causal_models(segments):
    layout = RowLayout(6, 0, segments=segments, packed=True)
    check(
        layout.row([LONG, SHORT]),
        inputs=[7, 8, 9, 5, 6, 0],
        weights=[1, 1, 1, 1, 0, 0],
        segment_ids=[1, 1, 1, 2, 2, 0],
        positions=[0, 1, 2, 0, 1, 0],
    )


def test_encoder_and_decoder_have_their_own_lengths():
    layout = RowLayout(3, 5, segments=True, packed=True)
    first = {"encoder_inputs": np.array([1, 2, 3]), "inputs": np.array([4])}
    second = {"encoder_inputs": np.array([5]), "inputs": np.array([6, 7])}
    check(
        layout.row([first, second]),
        encoder_inputs=[1, 2, 3, 5, 0],
        encoder_segment_ids=[1, 1, 1, 2, 0],
        encoder_positions=[0, 1, 2, 0, 0],
        inputs=[4, 6, 7],
        segment_ids=[1, 2, 2],
        positions=[0, 0, 1],
    )


def test_labels_stay_as_they_are():
    layout = RowLayout(2, 0, segments=True, packed=False)
    row = layout.row([{"inputs": np.array([1]), "labels": np.int32(3), "weights": np.float32(1)}])
    check(row, inputs=[1, 0], segment_ids=[1, 0], labels=3, weights=1)
    with pytest.raises(ValueError):
        layout.row([{"inputs": np.array([1]), "labels": np.int32(3)}] * 2)


def test_few_predicted_positions_have_columns_of_their_own():
    layout = RowLayout(5, 0, segments=False, packed=False, predictions=2)
    row = {"inputs": np.array([5, 3, 7]), "predicted": np.array([1])}
    row |= {"targets": np.array([6]), "weights": np.ones(1)}
    check(
        layout.row([row]), inputs=[5, 3, 7, 0, 0], predicted=[1, 0], targets=[6, 0], weights=[1, 0]
    )
