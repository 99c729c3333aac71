"""What every package may import. It imports none of them."""
