"""Takes a config to a finished run: plans it, starts its GMIs and watches them."""
