"""Data for private training: batches drawn as the accountant assumes, and what they carry."""

from typing import TYPE_CHECKING

from tfdp._compat.imports import on_demand

if TYPE_CHECKING:  # for editors and the documentation
    from tfdp.data.allocated import allocated_epochs
    from tfdp.data.click_statistics import ClickStatistics, private_click_statistics
    from tfdp.data.datasets.clicks import CRITEO_VOCABULARY_SIZES, ClickData
    from tfdp.data.datasets.criteo import load_criteo
    from tfdp.data.datasets.sequence_files import load_histories, load_sequences
    from tfdp.data.datasets.sequences import SequenceData, Sequences, leave_one_out_split
    from tfdp.data.datasets.sst2 import SST2Data, load_sst2
    from tfdp.data.datasets.synthetic import synthetic_sequences
    from tfdp.data.datasets.synthetic_clicks import synthetic_clicks
    from tfdp.data.datasets.tables import TextData, load_clicks, load_texts
    from tfdp.data.drawn_batches import load_batches
    from tfdp.data.frequency import FrequencyRelease, private_frequency
    from tfdp.data.frequent_items import FrequentItems
    from tfdp.data.microbatched import microbatches
    from tfdp.data.periods import DisjointPeriods, Period
    from tfdp.data.poisson import poisson_batches
    from tfdp.data.provenance import declare_sampling, sampling_of
    from tfdp.data.representation_release import Release
    from tfdp.data.representations import release_mixtures, release_once
    from tfdp.data.shuffled import shuffled_epochs
    from tfdp.data.sources import batched
    from tfdp.data.transitions import TransitionRelease, private_transitions

__all__ = [
    "CRITEO_VOCABULARY_SIZES",
    "ClickData",
    "ClickStatistics",
    "DisjointPeriods",
    "FrequencyRelease",
    "FrequentItems",
    "Period",
    "Release",
    "SST2Data",
    "SequenceData",
    "Sequences",
    "TextData",
    "TransitionRelease",
    "allocated_epochs",
    "batched",
    "declare_sampling",
    "leave_one_out_split",
    "load_batches",
    "load_clicks",
    "load_criteo",
    "load_histories",
    "load_sequences",
    "load_sst2",
    "load_texts",
    "microbatches",
    "poisson_batches",
    "private_click_statistics",
    "private_frequency",
    "private_transitions",
    "release_mixtures",
    "release_once",
    "sampling_of",
    "shuffled_epochs",
    "synthetic_clicks",
    "synthetic_sequences",
]

__getattr__ = on_demand(
    __name__,
    {
        ".allocated": ["allocated_epochs"],
        ".click_statistics": ["ClickStatistics", "private_click_statistics"],
        ".datasets.clicks": ["CRITEO_VOCABULARY_SIZES", "ClickData"],
        ".datasets.criteo": ["load_criteo"],
        ".datasets.sequence_files": ["load_histories", "load_sequences"],
        ".datasets.sequences": ["SequenceData", "Sequences", "leave_one_out_split"],
        ".datasets.sst2": ["SST2Data", "load_sst2"],
        ".datasets.synthetic": ["synthetic_sequences"],
        ".datasets.synthetic_clicks": ["synthetic_clicks"],
        ".datasets.tables": ["TextData", "load_clicks", "load_texts"],
        ".drawn_batches": ["load_batches"],
        ".frequency": ["FrequencyRelease", "private_frequency"],
        ".frequent_items": ["FrequentItems"],
        ".microbatched": ["microbatches"],
        ".periods": ["DisjointPeriods", "Period"],
        ".poisson": ["poisson_batches"],
        ".provenance": ["declare_sampling", "sampling_of"],
        ".representation_release": ["Release"],
        ".representations": ["release_mixtures", "release_once"],
        ".shuffled": ["shuffled_epochs"],
        ".sources": ["batched"],
        ".transitions": ["TransitionRelease", "private_transitions"],
    },
)


def __dir__():
    return sorted(__all__)
