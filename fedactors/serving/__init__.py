"""A party's part of a trained model, and predictions with it; stands on `data` and `plugins`."""
