"""Tables and figures of *Matrix Capsules with EM Routing* (Hinton, Sabour, Frosst 2018)."""
