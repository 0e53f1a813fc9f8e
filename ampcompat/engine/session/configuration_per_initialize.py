"""``Configuration``: what one call of ``amp.initialize`` decided for its models and optimizers."""

from ...errors import AmpError
from ...support.notices import Notices
from ...support.weak_list import WeakList
from .untrained_params import UntrainedParams


class Configuration:
    """The policy, the loss scalers and the printed notices of one call of ``amp.initialize``.

    Models and optimizers of other calls have their own, whatever is initialized later.
    """

    def __init__(self, request, verbosity):
        self.policy = request.policy
        self.scalers = request.make_scalers()
        self.notices = Notices(verbosity)
        self.options = request.fixed_options()
        self.shows_half_gradients = not request.free_half_grads
        self.stores_remainders = request.store_param_remainders
        self.half_dtypes = []  # of params of its models, before it cast them
        self.untrained = UntrainedParams()
        self.records = WeakList()  # the ``OptimizerRecord`` of each of its optimizers

    def scaler_of(self, loss_id):
        """Return the ``LossScaler`` of a loss, counted within this call.

        Raises:
            AmpError: there is none.
        """
        try:
            return self.scalers[loss_id]
        except (IndexError, TypeError):
            count = len(self.scalers)
            there = "there is 1 loss scaler" if count == 1 else f"there are {count} loss scalers"
            needed = f"num_losses={loss_id + 1}" if isinstance(loss_id, int) and loss_id > 0 else "num_losses"
            raise AmpError(
                f"amp.scale_loss got loss_id={loss_id!r}, and {there}: pass {needed} to amp.initialize."
            ) from None

    def add_losses(self, request):
        """Make loss scalers for the losses that a later call for the same models and optimizers has added."""
        self.scalers += request.make_scalers()[len(self.scalers) :]
