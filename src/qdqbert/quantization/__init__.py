"""Numbers that know no model: scales and codes, specs of sites, recipes, the search."""
