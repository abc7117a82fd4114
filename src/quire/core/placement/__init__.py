"""The choice of the bookies of an ensemble, and the order in which readers ask them.

There is no I/O: the known facts about bookies (a `View`), the ensemble to fill (`Wanted`) and
random numbers are arguments. A `Policy` makes the choice. `policies` has those that come with
Quire, and `DomainPolicy` is the base class for a policy of your own. Ledgers do not store the
policy, so clients with different policies can work together.
"""

from quire.core.placement.choice import Chance, Shuffler, choose, weighed
from quire.core.placement.policies import (
    POLICIES,
    AnyBookie,
    DomainPolicy,
    LocalFirst,
    RackAware,
    RegionAware,
    ZoneAware,
)
from quire.core.placement.policy import Policy
from quire.core.placement.read_order import Standing, read_order
from quire.core.placement.search import Rule
from quire.core.placement.values import (
    Adherence,
    Level,
    Place,
    View,
    Wanted,
    parse_location,
    region_of,
)

__all__ = [
    "POLICIES",
    "Adherence",
    "AnyBookie",
    "Chance",
    "DomainPolicy",
    "Level",
    "LocalFirst",
    "Place",
    "Policy",
    "RackAware",
    "RegionAware",
    "Rule",
    "Shuffler",
    "Standing",
    "View",
    "Wanted",
    "ZoneAware",
    "choose",
    "parse_location",
    "read_order",
    "region_of",
    "weighed",
]
