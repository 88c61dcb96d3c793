"""Reports for people: a page to open in a browser, and a model card for the hub."""
