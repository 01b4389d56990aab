"""Scripts that train what the catalogue serves; the toolkit itself never imports them."""
