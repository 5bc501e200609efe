"""A unittest.TestCase, as older suites have."""

import unittest

import torch
from torch.autograd import gradcheck


class TestSine(unittest.TestCase):
    def setUp(self):
        self.x = torch.ones(2, dtype=torch.float64, requires_grad=True)

    def test_right(self):
        self.assertTrue(gradcheck(torch.sin, (self.x,)))

    def test_in_subtests(self):
        for function in (torch.sin, torch.cos):
            with self.subTest(function=function):
                self.assertTrue(gradcheck(function, (self.x,)))
