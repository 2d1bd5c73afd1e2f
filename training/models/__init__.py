"""Networks of the two papers, wired from their capsule layers."""
