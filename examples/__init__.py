"""Scripts that train models of the catalogue; the toolkit never imports them."""
