import torch

from training.evaluate.metrics import exact_errors, most_probable, object_errors

PRESENT = torch.tensor([[1.0, 0.0, 0.0, 1.0]])


def test_the_two_most_probable_classes_are_the_answer():
    found = most_probable(torch.tensor([[0.2, 0.9, 0.1, 0.3], [0.5, 0.6, 0.7, 0.8]]), 2)
    assert found.int().tolist() == [[0, 1, 0, 1], [0, 0, 1, 1]]


def test_a_pair_in_either_order_is_right():
    for lengths in ([[0.9, 0.1, 0.1, 0.8]], [[0.8, 0.1, 0.1, 0.9]]):
        assert exact_errors(torch.tensor(lengths), PRESENT, 2) == 0
        assert object_errors(torch.tensor(lengths), PRESENT, 2) == 0


def test_a_pair_of_which_one_is_missed_is_wrong_and_half_its_objects_are():
    lengths = torch.tensor([[0.9, 0.8, 0.1, 0.7]])
    assert exact_errors(lengths, PRESENT, 2) == 1
    assert object_errors(lengths, PRESENT, 2) == 1


def test_a_pair_of_which_both_are_missed_is_one_wrong_image_and_two_wrong_objects():
    lengths = torch.tensor([[0.1, 0.8, 0.9, 0.2]])
    assert exact_errors(lengths, PRESENT, 2) == 1
    assert object_errors(lengths, PRESENT, 2) == 2


def test_how_certain_the_network_is_does_not_matter():
    lengths = torch.tensor([[0.02, 0.01, 0.0, 0.03]])  # far below any margin
    assert exact_errors(lengths, PRESENT, 2) == 0


def test_errors_of_a_batch_add_up():
    targets = torch.eye(4)[[0, 1, 2]] + torch.eye(4)[3]
    lengths = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    each = [slice(i, i + 1) for i in range(3)]
    assert exact_errors(lengths, targets, 2) == sum(exact_errors(lengths[i], targets[i], 2) for i in each)
    assert object_errors(lengths, targets, 2) == sum(object_errors(lengths[i], targets[i], 2) for i in each)


def test_with_one_object_both_count_the_usual_errors():
    lengths = torch.rand(50, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(50) % 4
    expected = (lengths.argmax(dim=1) != labels).sum()
    assert exact_errors(lengths, torch.eye(4)[labels], objects=1) == expected
    assert object_errors(lengths, torch.eye(4)[labels], objects=1) == expected
