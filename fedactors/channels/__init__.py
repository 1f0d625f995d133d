"""Publish/subscribe channels between parties: bounded FIFO topics with a deadline, and the broker around them."""
