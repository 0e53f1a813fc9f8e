"""The searches of ``check``, by part of the script; ``scripts.model.rule_texts`` has the messages."""
