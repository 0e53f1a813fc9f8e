"""The searches of ``check``, by part of the script; ``tools.check.rule_texts`` has the messages."""
