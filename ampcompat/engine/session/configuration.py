"""``Configuration``: what one call of ``amp.initialize`` decided for its models and optimizers."""

from ...support.notices import Notices
from ...support.weak_list import WeakList


class Configuration:
    """The policy, the loss scalers and the printed notices of one call of ``amp.initialize``.

    Models and optimizers of other calls have their own, whatever is initialized later.

    Args:
        request: the ``Request`` of the call.
        verbosity: 0 prints no notices.
    """

    def __init__(self, request, verbosity):
        self.policy = request.policy
        self.scalers = request.make_scalers()
        self.notices = Notices(verbosity)
        self.options = request.fixed_options()
        self.shows_half_gradients = not request.free_half_grads
        self.stores_remainders = request.store_param_remainders
        self.records = WeakList()  # the ``OptimizerRecord`` of each of its optimizers

    def add_losses(self, request):
        """Make loss scalers for the losses that a later call for the same models and optimizers has added."""
        self.scalers += request.make_scalers()[len(self.scalers) :]


class JoinedScalers(list):
    """The loss scalers of several calls of ``initialize``; assigning to an element replaces a scaler.

    Args:
        configurations: the ``Configuration`` of each call.
    """

    def __init__(self, configurations):
        self._places = [(each.scalers, index) for each in configurations for index in range(len(each.scalers))]
        super().__init__([scalers[index] for scalers, index in self._places])

    def __setitem__(self, index, scaler):
        super().__setitem__(index, scaler)
        scalers, place = self._places[index]
        scalers[place] = scaler
