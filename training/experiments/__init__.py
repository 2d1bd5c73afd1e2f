"""Tables and figures of the papers, each reproduced by name: `capsnet-train experiment NAME`.

Each name in EXPERIMENTS is that of a module, but for the three of SECTION_7, which share one. A module has
plans FULL and QUICK, and some have MEDIUM with a text about it, MEDIUM_FORM. `run(runner, plan)` measures
what the runner's rows do not hold yet, `report(rows)` gives the tables as Markdown, and `plot(rows, file)`
saves the figure.
"""

SECTION_7 = {  # of Sabour et al. 2017: the entries of one module
    "cifar10": "Section 7: CIFAR-10, an ensemble of 7",
    "smallnorb": "Section 7: smallNORB, toys that were never trained on",
    "svhn": "Section 7: SVHN, a smaller network",
}
SABOUR_2017 = {
    "table1": "Table 1: error on MNIST and MultiMNIST, by routing iterations and reconstruction",
    "perturb": "Figure 4: what each dimension of a digit's capsule means",
    "reconstruct": "Figure 3: reconstructions of right and of wrong answers",
    "multimnist": "Section 6 and figure 5: two overlapping digits, named and drawn apart",
    "segment": "Section 6: pixels of overlapping digits, assigned to one, the other or both",
    "affnist": "Section 5.2: digits transformed in ways that were never trained on",
    "routing": "Figures A.1 and A.2: how logits change as routing goes on; training loss by iterations",
    **SECTION_7,
    "equivariance": "How a capsule changes when its digit is shifted, rotated or scaled",
    "samples": "Error by the number of training examples, CapsNet and CNN",
}
HINTON_2018 = {
    "norb": "Matrix capsules, section 5: smallNORB and toys, by one crop and by several",
    "norb-ablation": "Matrix capsules, table 1: iterations, poses, losses, coordinate addition",
    "viewpoints": "Matrix capsules, table 2: viewpoints that were never trained on",
    "attack": "Matrix capsules, section 6: adversarial examples, for capsules and the CNN",
    "votes": "Matrix capsules, figure 2: distances of votes to the class capsules, by iteration",
    "matrix-others": "Matrix capsules, section 5: MNIST and CIFAR-10",
}
EXPERIMENTS = SABOUR_2017 | HINTON_2018
ALL_EXPERIMENTS = "all"  # on the command line
