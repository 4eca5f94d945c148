"""For programs of your own without Spark: the reorder job on this machine, step by step.

Loaded when it is imported, and by nothing else of Sequitur's public names: it needs the packages of
the extra `[local]`.
"""

from sequitur.base.extras import load

for _module in ("cloudpickle", "pyarrow"):
    load(_module, "sequitur.local")

from sequitur.pipelines.local.job import reorder
from sequitur.pipelines.ordering.job_report import JobReport
from sequitur.pipelines.ordering.ordered_step import OrderedStep, StepFunction

__all__ = ["JobReport", "OrderedStep", "StepFunction", "reorder"]
