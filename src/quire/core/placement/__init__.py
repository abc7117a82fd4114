"""Which bookies form an ensemble, and in which order readers ask them.

Pure: what is known of the bookies (a `View`), what is asked for (`Wanted`) and chance are passed
in. A `Policy` answers; `policies` has those that come with Quire, and `DomainPolicy` is what one
of your own derives from. Nothing of it is stored in ledgers: clients with different policies get
along (metadata spec, section 6).
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
