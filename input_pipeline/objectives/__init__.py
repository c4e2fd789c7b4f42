"""The table of objectives. A new objective is one file here and one line in this table."""

from input_pipeline.objectives.causal_lm import CausalLM
from input_pipeline.objectives.classify_images import ClassifyImages
from input_pipeline.objectives.classify_text import ClassifyText
from input_pipeline.objectives.embed import Embed
from input_pipeline.objectives.masked_lm import MaskedLM
from input_pipeline.objectives.objective import Objective
from input_pipeline.objectives.prefix_lm import PrefixLM
from input_pipeline.objectives.seq2seq import Seq2Seq
from input_pipeline.objectives.span_corruption import SpanCorruption

OBJECTIVES: dict[str, Objective] = {
    objective.name: objective
    for objective in (
        Seq2Seq(),
        CausalLM(),
        PrefixLM(),
        MaskedLM(),
        SpanCorruption(),
        ClassifyText(),
        ClassifyImages(),
        Embed(),
    )
}
