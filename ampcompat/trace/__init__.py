"""What is observed of a training step: values of tensors, read from the device in one transfer."""
