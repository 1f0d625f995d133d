"""Mechanisms and their noise, and the accounts of what they guarantee; stands on `errors` and `validation`."""
