"""Tables and figures of *Dynamic Routing Between Capsules* (Sabour, Frosst, Hinton 2017)."""
