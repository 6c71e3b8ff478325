"""Which run of which model goes on, and in whose run an optimizer is."""

import contextlib
import threading

from tfdp.errors import PrivacyError
from tfdp.optimizers import DPOptimizer

_RUN = "_tfdp_run"
_CLAIMS = threading.Lock()


class Run:
    """A run that goes on.

    Attributes:
        model: the model that is trained.
        charging: of its `DPOptimizer`, or None: what charges the steps.
        batch: what `training_batches` gave last; None beside `fit`.
        batch_is_trained: whether the step on that batch came to its end.
        is_fit: whether it is a `fit`.
        rows_are_checked: whether a `fit` gives batches from the model's own `select_on_host`.
        trained: ids of the variables that forward noise was found to protect, or not, by tracing;
            None where it makes no difference.
        thread: what the history of the weights knows of the thread that trains them.
    """

    def __init__(self, model):
        self.model = model
        self.charging = _charging_of(model)
        self.batch = None
        self.batch_is_trained = True
        self.is_fit = True
        self.rows_are_checked = False
        self.trained = None
        self.thread = model.charge_history.begin_training()


def run_of(model):
    """The `Run` of a model that goes on, or None."""
    return vars(model).get(_RUN)


@contextlib.contextmanager
def trained_batch(model):
    """Around the step on a batch of `training_batches`: notes where it comes to its end."""
    yield
    run = run_of(model)
    if run is not None:
        run.batch_is_trained = True


def claim(model):
    """Takes a model and its optimizer for one run; `release` gives them back.

    Returns:
        The `Run`.

    Raises:
        PrivacyError: if a `fit` of the model goes on, in another thread or around this call: its
            steps would be charged as those of the new run, and two steps at a time could draw the
            same noise. Or if the optimizer is in a run of another model.
    """
    with _CLAIMS:
        before = run_of(model)
        if before is not None and before.is_fit:
            raise PrivacyError(
                f"A `fit` of model {model.name!r} is still running, in another thread or as the "
                "caller of this callback. Its steps would be charged to the new run. Wait until it "
                "ends, or train another model (`keras.models.clone_model`)."
            )
        refuse_busy_optimizer(model, model.optimizer)
        if before is not None:
            _leave(before)
        vars(model)[_RUN] = run = Run(model)
        if run.charging is not None:
            run.charging.enter(run)
    return run


def release(model):
    """Gives back what the run of a model took; returns the `Run`."""
    run = vars(model).pop(_RUN)
    _leave(run)
    return run


def _leave(run):
    run.model.charge_history.end_training(run.thread)
    if run.charging is not None and run.charging.run is run:
        run.charging.enter(None)


def refuse_busy_optimizer(model, optimizer):
    """Refuses an optimizer that another model's run charges.

    Raises:
        PrivacyError: if it is: steps of this model would be charged as those of that run, whatever
            batches they see.
    """
    run = optimizer.charging.run if isinstance(optimizer, DPOptimizer) else None
    if run is not None and run.model is not model:
        raise PrivacyError(
            f"The DPOptimizer of model {model.name!r} is used by a run of model "
            f"{run.model.name!r}, which `fit` or `training_batches` began. A step of this model "
            "would be charged as a step of that run. End that run first (use up or close its "
            "`training_batches`), or give each model its own DPOptimizer. Received: one "
            "DPOptimizer for both models"
        )


def _charging_of(model):
    private = isinstance(getattr(model, "optimizer", None), DPOptimizer)
    return model.optimizer.charging if private else None
