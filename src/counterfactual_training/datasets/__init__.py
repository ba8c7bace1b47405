"""The paper's data sets: catalogue, synthetic sets, tables and images, downloads.

Start with ``catalog.py``. ``frames.py`` turns a user's data frame into a data set; ``download.py``
checks the sha256 of every file, wherever it comes from.
"""

from counterfactual_training.datasets.catalog import load_dataset
from counterfactual_training.datasets.dataset import Dataset

__all__ = ["Dataset", "load_dataset"]
