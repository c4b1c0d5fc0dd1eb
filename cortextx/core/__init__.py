"""Pure building blocks that both planes share: framing, JSON, delivery, time and budgets."""
