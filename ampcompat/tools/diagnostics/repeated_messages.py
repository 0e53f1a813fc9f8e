"""``Findings``: the messages about skipped steps, each cause in full the first time it occurs."""

from collections import Counter

from .growth_messages import history
from .skip_facts import UNWATCHED
from .skip_messages import explain


class Findings:
    """The explanations of skipped steps.

    Attributes:
        texts: (step, text) of every skipped step, in the order in which they became known.
    """

    def __init__(self):
        self.texts = []
        self._causes = Counter()  # (first step, cause) -> how many steps were skipped because of it
        self._last = {}  # loss_id -> its last explanation (cause and advice, record, facts, first step with them)

    def last_record(self, loss_id):
        """Return the ``PassRecord`` that was explained last for a loss, or None."""
        return self._last[loss_id][1] if loss_id in self._last else None

    def last_facts(self, loss_id):
        """Return the ``OverflowFacts`` that were explained last for a loss, or None."""
        return self._last[loss_id][2] if loss_id in self._last else None

    def add(self, record, facts):
        """Explain a recorded pass; return the lines to print: none if the last one had the same cause."""
        cause, text, advice = explain(facts)
        earlier = self._last.get(record.loss_id)
        lines, first_step = [text] + history(facts) + ["What to try: " + advice], record.step
        if earlier is not None and earlier[0] == (cause, advice):
            first_step, lines = earlier[3], []
        self._last[record.loss_id] = ((cause, advice), record, facts, first_step)
        self._causes[first_step, cause] += 1
        self.texts.append((record.step, " ".join(lines) or f"As in step {first_step}: {cause}."))
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
        causes = ["{} as in step {} ({})".format(count, *cause) for cause, count in self._causes.items()]
        told = "{} had inf or nan".format(len(self.texts) or "none") + (": " if causes else "")
        return f"ampcompat: of {passes} backward passes {told}{', '.join(causes)}."

    def clear(self):
        """Explain the next skipped step in full."""
        self._last.clear()
