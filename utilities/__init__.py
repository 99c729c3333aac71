"""What every package may import, records included. It imports none of them."""
