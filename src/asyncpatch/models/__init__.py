"""Networks: the UNet with FiLM from a field of times, and its use as a denoiser."""
