"""Code that every package, records included, may import; it imports none of them."""
