"""Writes the reference values of accountant.rs: records, batch, noise multiplier, steps, delta, epsilon.

Needs dp-accounting from PyPI: pip install dp-accounting. Neighbours differ by one record, which is there or is not; each record
is taken with probability batch/records at every step.
"""

try:
    import dp_accounting
    from dp_accounting import rdp
except ImportError:
    print("skipped: this Python has no dp-accounting")
    raise SystemExit(0)

CASES = [
    (60_000, 256, 1.1, 14_062, 1e-5),  # the tutorial of TensorFlow Privacy: 60 epochs of MNIST
    (10_000, 256, 1.0, 1_200, 1e-5),
    (10_000, 64, 1.0, 1_200, 1e-5),
    (10_000, 256, 2.0, 1_200, 1e-5),
    (1_000, 64, 2.0, 600, 1e-5),
    (100_000, 1_024, 1.0, 2_000, 1e-6),
    (500, 500, 8.0, 100, 1e-4),  # every record at every step
    (1_000_000, 256, 0.9, 10_000, 1e-7),
    (2_000, 32, 1.5, 5_000, 1e-5),
    (50_000, 512, 4.0, 20_000, 1e-6),
]

for records, batch, noise, steps, delta in CASES:
    event = dp_accounting.GaussianDpEvent(noise)
    if batch < records:
        event = dp_accounting.PoissonSampledDpEvent(batch / records, event)
    accountant = rdp.RdpAccountant()
    accountant.compose(event, steps)
    print(records, batch, noise, steps, delta, accountant.get_epsilon(delta))
