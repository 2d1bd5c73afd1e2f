"""How well a network does: error, several crops, transformed digits, attacks."""
