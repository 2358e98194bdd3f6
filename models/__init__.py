"""Policies, critic, losses, estimators, chat rendering and generation engines."""
