"""Pictures to train on: from files of any kind to batches on the device."""
