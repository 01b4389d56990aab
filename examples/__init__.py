"""Examples of what users make themselves; the toolkit never imports them."""
