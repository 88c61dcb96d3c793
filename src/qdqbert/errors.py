"""Everything this package raises on purpose.

* QdqBertError
  - UserInputError          an argument, a path or a file that the user named cannot be used
    · DataFileError         a data file is missing, empty or has other columns
    · CheckpointError       the checkpoint cannot be loaded, or is no encoder that we know
    · OutputExistsError     the output folder is there already
    · MissingExtraError     the call needs a library that is not installed
  - SpecError               a spec or recipe contradicts itself
    · UnmatchedRuleError    a rule decided no site
  - CalibrationError        a quantizer has no usable range
  - TrainingError           training cannot go on; what was saved stays
  - GraphError              an exported graph is not what the next step needs
"""

from __future__ import annotations


class QdqBertError(Exception):
    """Base class: `except QdqBertError` catches what the user can fix."""


class UserInputError(QdqBertError, ValueError):
    """An argument, a path or a file that the user named cannot be used."""


class DataFileError(UserInputError):
    """A data file is missing, empty or has other columns."""


class CheckpointError(UserInputError):
    """The checkpoint cannot be loaded, or is no encoder that we know."""


class OutputExistsError(UserInputError):
    """The output folder is there already."""


class MissingExtraError(UserInputError):
    """The call needs a library that is not installed."""


class SpecError(QdqBertError, ValueError):
    """A spec or recipe contradicts itself."""


class UnmatchedRuleError(SpecError):
    """A rule decided no site."""


class CalibrationError(QdqBertError, RuntimeError):
    """A quantizer has no usable range."""


class UncalibratedError(CalibrationError, AssertionError):
    """A quantizer saw no data. An assertion in pytorch-quantization, so that both are caught."""


class TrainingError(QdqBertError, RuntimeError):
    """Training cannot go on: a loss that is not finite, or no room for a checkpoint."""


class GraphError(QdqBertError, RuntimeError):
    """An exported graph is not what the next step needs."""
