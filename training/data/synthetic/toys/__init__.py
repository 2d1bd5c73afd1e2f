"""Toys that the repository makes itself: a stereo set in smallNORB's form, for where that cannot be fetched.

Five categories of ten toys, each put together from ellipsoids, frustums of cones and prismoids with
proportions and parts of its own, all painted alike, on a plain table. Five toys of each are trained on, the
others are measured on: new shapes of known kinds. The design was fixed before any network was compared
on it.

Why a renderer of our own: VTK and pyrender want an OpenGL context, and so a display or a system package;
Mitsuba is a large system for light that is much less plain than ours. Embree (through `embreex`) runs
anywhere and took 0.1 microseconds per ray on one core for meshes of 25,000 triangles, but shading and shadows
would still be ours to write, and it chooses its instructions, and so its last bits, by the processor. These
solids are few and convex: met in closed form with NumPy they take no longer, have exact normals, and need
nothing installed.
"""
