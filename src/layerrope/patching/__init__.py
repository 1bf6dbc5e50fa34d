"""Depth gains on other people's models: where they act, putting them on and taking them off."""
