"""Models of transformers where Python removes docstrings."""

from __future__ import annotations

import pytest
import transformers
from transformers import utils

from python_process import run_python
from qdqbert.encoders.checkpoint.docstrings import importing_models


def test_docstrings_are_completed_as_usual() -> None:
    complete = utils.auto_docstring
    with importing_models():
        assert utils.auto_docstring is complete
    assert "input_ids" in transformers.BertModel.forward.__doc__


@pytest.mark.slow
def test_models_are_imported_without_docstrings() -> None:
    code = (
        "from transformers import utils\n"
        "complete = utils.auto_docstring\n"
        "from qdqbert.training.models import QDQBertForSequenceClassification\n"
        "assert utils.auto_docstring is complete"
    )
    run_python("-OO", "-c", code)
