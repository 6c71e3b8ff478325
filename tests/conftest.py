"""Fixtures shared by all tests."""

import os
import pathlib

import pytest


@pytest.fixture(scope="session")
def shared_data():
    """Folder of the real data sets, which the project may not redistribute."""
    default = pathlib.Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = pathlib.Path(os.environ.get("TFDP_DATA", default))
    if not folder.is_dir():
        pytest.skip("real data sets are absent: no ../shared/data, and TFDP_DATA names no folder")
    return folder
