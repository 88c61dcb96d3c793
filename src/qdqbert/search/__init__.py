"""Which sites cost accuracy, and which of them to leave in float."""
