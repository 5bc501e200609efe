"""Side by side with torch.func in one run, as ratios: `python -m benchmarks`."""
