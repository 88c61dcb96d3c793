"""Search for the sites that cost accuracy, to leave them in float."""
