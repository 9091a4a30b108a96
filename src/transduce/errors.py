"""The errors a user can cause: each says what is wrong, where, and what to do.

    TransduceError               the command line prints it as one line and exits with 2
    ├── DataError                text files: missing, not UTF-8, unequal counts; what is no text
    ├── TokenizerError           a subword model that cannot be trained, read or fitted
    ├── SettingsError            an unknown key, a wrong type, values that contradict each other
    ├── BundleError              a folder that is not a usable model
    ├── RunError                 a training run that cannot start, go on, or be resumed
    ├── DeviceError              a device that this machine lacks, or whose memory ran out
    ├── TraceError               names, heads or models that cannot be traced
    └── AttentionError           (also a ValueError) shapes or masks without a distribution
    Stopped                      not an error: a training was asked to stop and has saved (exit 75)

What only a bug can cause is an assert. SettingsError is no ValueError: pydantic would swallow it.
"""


class TransduceError(Exception):
    """Anything that the user can mend; its text is one line."""


class DataError(TransduceError):
    """Text files, or what is given as text, that cannot be used as they are."""


class TokenizerError(TransduceError):
    """A subword model that cannot be trained, read or fitted."""


class SettingsError(TransduceError):
    """Settings that are unknown, of a wrong type, or contradict each other."""


class BundleError(TransduceError):
    """A folder that is not a usable model directory."""


class RunError(TransduceError):
    """A training run that cannot start, go on, or be resumed."""


class DeviceError(TransduceError):
    """A device that this machine lacks, or whose memory ran out."""


class TraceError(TransduceError):
    """Names, heads or models that cannot be traced."""


class AttentionError(TransduceError, ValueError):
    """Shapes, masks or rows for which attention is not defined."""


class Stopped(Exception):
    """A training run was asked to stop; it has saved and can be started again."""
