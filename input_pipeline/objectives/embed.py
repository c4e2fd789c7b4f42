"""Published encoders without a head, of texts or of images. They return vectors."""

from input_pipeline.objectives.objective import Objective


class Embed(Objective):
    name = "embed"
    description = "nothing: it returns a vector and cannot be trained"
    families = ("encoder",)
    head = "embedder"
    terms = ()
    keys = ("embedding", "normalize")
