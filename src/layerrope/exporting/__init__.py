"""A trained model out of here: gains folded into stock weights, exported folders, and the proof of each."""
