"""Proves from the graph of a step that examples do not mix (MATH.md section 2).

Here belong what a tensor may hold of the examples (`values`), the rules of operations (`registry`;
`operations`, `shapes`, `look_ups`, `products`, `lists`), public tensors that are alike for all
examples (`alike`), random numbers (`draws`), the walk through a graph and the functions that it
calls (`body`, `walk`), the search by values for operations without a rule (`search`), and the
verdict (`proof`). What clips, and which layer takes which rule, does not belong here.
"""

from tfdp.clipping.independence import (  # noqa: F401
    lists,
    look_ups,
    operations,
    products,
    shapes,
)
