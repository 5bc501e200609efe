"""Charts: a list of tensors seen as one vector of real coordinates.

A complex element takes two coordinates, its real and its imaginary part. With torch's convention for
gradients, the real view of a complex cotangent is the real covector, so nothing outside this module
needs to know about complex numbers.

A sparse tensor has a place of its own kind. Masked, its coordinates are the elements that it specifies;
otherwise they are all its elements, and a tensor made from them specifies every one, in the same layout.
torch cannot stack such tensors, so a stack of them is made one tensor at a time.
"""

from covector._chart.chart import AnyPlace as AnyPlace
from covector._chart.chart import Chart as Chart
from covector._chart.chart import Repeated as Repeated
from covector._chart.chart import Sampled as Sampled
from covector._chart.chart import one_number as one_number
from covector._chart.chart import real_ones as real_ones
from covector._chart.chart import sampled as sampled
from covector._chart.convention import CONVENTIONS as CONVENTIONS
from covector._chart.convention import Sides as Sides
from covector._chart.convention import Wirtinger as Wirtinger
from covector._chart.layouts import SUPPORTED as SUPPORTED
from covector._chart.layouts import ShapeChange as ShapeChange
from covector._chart.layouts import copied as copied
from covector._chart.layouts import dense as dense
from covector._chart.layouts import dense_twin as dense_twin
from covector._chart.layouts import is_opaque as is_opaque
from covector._chart.layouts import is_sparse as is_sparse
from covector._chart.layouts import is_strided as is_strided
from covector._chart.layouts import kind_of as kind_of
from covector._chart.layouts import overlaps as overlaps
from covector._chart.layouts import part_of_larger as part_of_larger
from covector._chart.layouts import real_dtype as real_dtype
from covector._chart.layouts import reordered as reordered
from covector._chart.layouts import same_numbers as same_numbers
from covector._chart.layouts import values_of as values_of
from covector._chart.place import Beyond as Beyond
from covector._chart.place import Place as Place
from covector._chart.sparse import Pattern as Pattern
from covector._chart.sparse import SparsePlace as SparsePlace
from covector._chart.sparse import moved as moved
from covector._chart.sparse import refusal as refusal
