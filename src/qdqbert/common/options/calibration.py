"""How ranges are found."""

from __future__ import annotations

from qdqbert.common.choices import CalibratorName
from qdqbert.common.errors import UserInputError
from qdqbert.common.objects import OptionalInput
from qdqbert.common.options.declared import Options, option

# Ranges that cover fewer than half of the values are of no use.
_LEAST_PERCENTILE = 50


class Calibration(Options):
    """Calibration.

    Attributes:
        calibrator: Rule that turns statistics into ranges. The default is "percentile" when
            quantizing and "mse" when training.
        percentile: Percentage of magnitudes that a range covers, for the calibrator "percentile";
            99.999 by default.
        samples: Number of examples to calibrate on.
        seed: Seed that draws the calibration examples.
        ranges_from: Folder that an earlier call wrote for the same model. Its ranges are used
            again, for other targets or settings.
        recalibrate: Calibrate again, even if the checkpoint's own quantizers have ranges.
        recalibrate_weights: Take the ranges of weights from the weights, even if the checkpoint
            stores some.
        ray: Calibrate on the Ray cluster with this address, such as "10.0.0.1:6379". For "auto",
            the one that `RAY_ADDRESS` or a running Ray on this machine names. If there is none, or
            for "local", Ray is started on this machine.
    """

    calibrator: CalibratorName | None = None
    percentile: float | None = option(default=None, above=0, at_most=100)
    samples: int = option(default=300, flat="calibration_samples", at_least=1)
    seed: int = 0
    ranges_from: OptionalInput = option(default=None)
    recalibrate: bool = False
    recalibrate_weights: bool = False
    ray: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ranges_from is None:
            return
        for field in ("calibrator", "percentile", "samples", "recalibrate", "ray"):
            if field in self.given():
                name = "calibration_samples" if field == "samples" else field
                raise UserInputError(
                    f"`{name}` applies to a new calibration, and "
                    f"`ranges_from={self.ranges_from!r}` uses an earlier one. Leave one of the two "
                    "out.",
                    argument=name,
                )


def check_percentile(options: Calibration, calibrator: CalibratorName) -> None:
    """Refuse a percentile that another calibrator does not read, or that looks like a fraction.

    Raises:
        UserInputError: The percentile cannot be used.
    """
    value = options.percentile
    if value is None:
        return
    if calibrator != "percentile":
        raise UserInputError(
            f"`percentile={value}` requires `calibrator='percentile'`, got "
            f"`calibrator={calibrator!r}`.",
            argument="percentile",
        )
    if value < _LEAST_PERCENTILE:
        example = f"{100 * value:g}" if value <= 1 else "99.99"
        raise UserInputError(
            f"`percentile={value}` is too small: it is in percent, so `percentile={example}` "
            f"covers {example} % of the magnitudes. Pass at least {_LEAST_PERCENTILE}.",
            argument="percentile",
        )
