"""Private training on several devices, with `tf.distribute` (MATH.md section 1).

The private step itself is in `models` and `optimizers`; here is where it meets the other replicas.
"""
