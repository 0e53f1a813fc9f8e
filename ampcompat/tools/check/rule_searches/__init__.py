"""The searches for what ``check`` finds, by the part of a script; ``tools.check.rule_texts`` has the messages."""
