"""The ground floor: what every package may use, and what uses none of them."""
