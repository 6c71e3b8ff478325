"""Batches, sources, releases and data sets. Knows no models."""

from typing import TYPE_CHECKING

from tfdp._compat.imports import on_demand

if TYPE_CHECKING:  # for editors and the documentation
    from tfdp.data.datasets.clicks import CRITEO_VOCABULARY_SIZES, ClickData
    from tfdp.data.datasets.criteo import load_criteo
    from tfdp.data.datasets.sequence_files import load_histories, load_sequences
    from tfdp.data.datasets.sequences import SequenceData, Sequences, leave_one_out_split
    from tfdp.data.datasets.sst2 import SST2Data, load_sst2
    from tfdp.data.datasets.synthetic import synthetic_sequences
    from tfdp.data.datasets.synthetic_clicks import synthetic_clicks
    from tfdp.data.datasets.tables import TextData, load_clicks, load_texts
    from tfdp.data.provenance.dataset_tags import declare_sampling, sampling_of
    from tfdp.data.releases.click_statistics import ClickStatistics, private_click_statistics
    from tfdp.data.releases.frequency import FrequencyRelease, private_frequency
    from tfdp.data.releases.frequent_items import FrequentItems
    from tfdp.data.releases.representation_release import Release
    from tfdp.data.releases.representations import release_mixtures, release_once
    from tfdp.data.releases.transitions import TransitionRelease, private_transitions
    from tfdp.data.samplers.allocated import allocated_epochs
    from tfdp.data.samplers.cyclic_poisson import cyclic_poisson_batches
    from tfdp.data.samplers.drawn_batches import load_batches
    from tfdp.data.samplers.microbatched import microbatches
    from tfdp.data.samplers.poisson import poisson_batches
    from tfdp.data.samplers.shuffled import shuffled_epochs
    from tfdp.data.samplers.stream import stream_batches
    from tfdp.data.sampling.periods import DisjointPeriods, Period
    from tfdp.data.sources.outside_memory import batched

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
    "cyclic_poisson_batches",
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
    "stream_batches",
    "synthetic_clicks",
    "synthetic_sequences",
]

__getattr__ = on_demand(
    __name__,
    {
        ".samplers.allocated": ["allocated_epochs"],
        ".releases.click_statistics": ["ClickStatistics", "private_click_statistics"],
        ".datasets.clicks": ["CRITEO_VOCABULARY_SIZES", "ClickData"],
        ".datasets.criteo": ["load_criteo"],
        ".datasets.sequence_files": ["load_histories", "load_sequences"],
        ".datasets.sequences": ["SequenceData", "Sequences", "leave_one_out_split"],
        ".datasets.sst2": ["SST2Data", "load_sst2"],
        ".datasets.synthetic": ["synthetic_sequences"],
        ".datasets.synthetic_clicks": ["synthetic_clicks"],
        ".datasets.tables": ["TextData", "load_clicks", "load_texts"],
        ".samplers.cyclic_poisson": ["cyclic_poisson_batches"],
        ".samplers.drawn_batches": ["load_batches"],
        ".releases.frequency": ["FrequencyRelease", "private_frequency"],
        ".releases.frequent_items": ["FrequentItems"],
        ".samplers.microbatched": ["microbatches"],
        ".sampling.periods": ["DisjointPeriods", "Period"],
        ".samplers.poisson": ["poisson_batches"],
        ".provenance.dataset_tags": ["declare_sampling", "sampling_of"],
        ".releases.representation_release": ["Release"],
        ".releases.representations": ["release_mixtures", "release_once"],
        ".samplers.shuffled": ["shuffled_epochs"],
        ".samplers.stream": ["stream_batches"],
        ".sources.outside_memory": ["batched"],
        ".releases.transitions": ["TransitionRelease", "private_transitions"],
    },
)


def __dir__():
    return sorted(__all__)
