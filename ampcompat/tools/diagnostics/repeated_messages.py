"""``Findings``: the messages about skipped steps, in full the first time and as a reference after that."""

from .growth_messages import history
from .skip_facts import UNWATCHED
from .skip_messages import explain, number


class Findings:
    """The explanations of skipped steps.

    Attributes:
        texts: (step, text) of every skipped step, in the order in which they became known.
    """

    def __init__(self):
        self.texts = []
        self._last = {}  # loss_id -> its last explanation (cause and advice, record, facts, first step with them)

    def last_record(self, loss_id):
        """Return the ``PassRecord`` that was explained last for a loss, or None."""
        return self._last[loss_id][1] if loss_id in self._last else None

    def last_facts(self, loss_id):
        """Return the ``OverflowFacts`` that were explained last for a loss, or None."""
        return self._last[loss_id][2] if loss_id in self._last else None

    def add(self, record, facts):
        """Explain a recorded pass; return the lines to print."""
        cause, text, advice = explain(facts)
        earlier = self._last.get(record.loss_id)
        lines, first_step = [text] + history(facts) + ["What to try: " + advice], record.step
        if earlier is not None and earlier[0] == (cause, advice):
            first_step = earlier[3]
            lines = [f"As in step {first_step}: {cause}, at scale {number(facts.scale)}."]
        self._last[record.loss_id] = ((cause, advice), record, facts, first_step)
        self.texts.append((record.step, " ".join(lines)))
        return lines

    def add_unrecorded(self, record, facts):
        """Explain a pass for which only the loss and the gradients are known."""
        _, text, advice = explain(facts._replace(missing_outputs=UNWATCHED))
        told = f"{text} What to try: {advice}"
        earlier = self._last.get(record.loss_id)
        if earlier is not None and earlier[2].loss == facts.loss:  # nan or inf, or None for a finite loss
            told = f"As in step {earlier[3]}, as far as is known: {UNWATCHED}."
        self.texts.append((record.step, told))

    def summary(self, passes):
        """Return a sentence on a run with this number of passes."""
        count, overflows = len(self.texts), "none had inf or nan"
        if count:
            overflows = "{} {} explained above".format(count, "is" if count == 1 else "are")
        return f"ampcompat: of {passes} backward passes {overflows}."

    def clear(self):
        """Explain the next skipped step in full."""
        self._last.clear()
