"""The table of objectives. A new objective is one file here and one line in this table."""

from input_pipeline.objectives.answer_span import AnswerSpan
from input_pipeline.objectives.causal_lm import CausalLM
from input_pipeline.objectives.classify_images import ClassifyImages
from input_pipeline.objectives.classify_sounds import ClassifySounds
from input_pipeline.objectives.classify_text import ClassifyText
from input_pipeline.objectives.classify_tokens import ClassifyTokens
from input_pipeline.objectives.dpo import DPO
from input_pipeline.objectives.embed import Embed
from input_pipeline.objectives.fill_in_middle import FillInMiddle
from input_pipeline.objectives.forecast import Forecast
from input_pipeline.objectives.masked_items import MaskedItems
from input_pipeline.objectives.masked_lm import MaskedLM
from input_pipeline.objectives.objective import Objective
from input_pipeline.objectives.prefix_lm import PrefixLM
from input_pipeline.objectives.regress_text import RegressText
from input_pipeline.objectives.seq2seq import Seq2Seq
from input_pipeline.objectives.span_corruption import SpanCorruption

OBJECTIVES: dict[str, Objective] = {
    objective.name: objective
    for objective in (
        Seq2Seq(),
        CausalLM(),
        FillInMiddle(),
        PrefixLM(),
        MaskedLM(),
        MaskedItems(),
        SpanCorruption(),
        DPO(),
        ClassifyText(),
        ClassifyTokens(),
        RegressText(),
        AnswerSpan(),
        ClassifyImages(),
        ClassifySounds(),
        Forecast(),
        Embed(),
    )
}
