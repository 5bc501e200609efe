"""Linear maps: the derivative of a function at a point, to be applied singly, in batches, or whole.

A batch goes down a ladder: first one vmap over all directions; where an operation has no forward-mode
rule, a batch through the recorded graph of the pullback; where batching itself is impossible, a loop.
The map remembers the rung it stands on and why it left the ones above.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from covector._chart import Chart
from covector._engine import forward, reverse
from covector._engine.attention import differentiable_attention
from covector._engine.batch import Apply, batched, looped
from covector._tree import Arguments, Evaluation
from covector.errors import BatchingWarning, Caller, ForwardModeWarning, RandomnessError, warn

Tensors = list[Tensor]

_CUSTOM_FUNCTION = "a custom autograd.Function"


@dataclass(frozen=True)
class Batching:
    """The rung on which batches are applied, and why each rung above it was left."""

    rung: str = "vmap"
    reasons: tuple[str, ...] = ()

    def down(self, rung: str, reason: str) -> Batching:
        """The next state, on a lower rung."""
        return Batching(rung, (*self.reasons, f"{self.rung}: {reason}"))


class LinearMap:
    """u -> J u, or v -> J^T v, at one point; `label` says by which mode."""

    label: str
    evaluation: Evaluation

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.batching = Batching()

    def apply(self, direction: Tensors) -> Tensors:
        """The image of one direction."""
        raise NotImplementedError

    def apply_batch(
        self, stacks: Tensors, *, chunk_size: int | None = None, randomness: str = "error"
    ) -> Tensors:
        """The images of many directions, stacked along the first axis as the directions are."""
        count = stacks[0].shape[0]
        size = max(1, count if chunk_size is None else chunk_size)
        spans = [slice(start, start + size) for start in range(0, max(count, 1), size)]
        return _joined([self._apply_chunk([stack[span] for stack in stacks], randomness) for span in spans])

    def matrix(self, over: Chart, *, chunk_size: int | None, randomness: str) -> Tensors:
        """The images of the whole basis of `over`, which is made a chunk at a time."""
        size = max(1, over.size if chunk_size is None else chunk_size)
        return _joined(
            [
                self._apply_chunk(over.basis(start, min(start + size, over.size)), randomness)
                for start in range(0, max(over.size, 1), size)
            ]
        )

    def _batched(self, stacks: Tensors, randomness: str) -> Tensors:
        return batched(self.apply, stacks, randomness)

    def _looped(self, stacks: Tensors, randomness: str) -> Tensors:
        return looped(self.apply, stacks)

    def _apply_chunk(self, stacks: Tensors, randomness: str) -> Tensors:
        if stacks[0].shape[0] == 0:
            one = [torch.zeros((1, *s.shape[1:]), dtype=s.dtype, device=s.device) for s in stacks]
            return [image[:0] for image in self._looped(one, randomness)]
        if stacks[0].shape[0] == 1 or self.batching.rung == "loop":
            return self._looped(stacks, randomness)
        try:
            return self._batched(stacks, randomness)
        except (RuntimeError, TypeError) as error:
            if "randomness error mode" in str(error):
                raise self._random() from error
            failure = error
        try:
            images = self._looped(stacks, randomness)
        except Exception as error:
            raise error from failure
        reason = str(failure).strip().partition("\n")[0][:200]
        self.batching = self.batching.down("loop", reason)
        warn(
            f"{self._caller}: directions are applied one by one, because the batch failed: {reason} "
            "-- pass chunk_size=1 to choose the loop yourself.",
            BatchingWarning,
        )
        return images

    def _random(self) -> RandomnessError:
        return RandomnessError(
            f"{self._caller}: the function draws random numbers, and each direction would see its own. "
            "Pass randomness='same' (every direction sees the same draw: the Jacobian of that draw) "
            "or randomness='different'."
        )


def _joined(chunks: list[Tensors]) -> Tensors:
    if len(chunks) == 1:
        return chunks[0]
    return [torch.cat(parts) for parts in zip(*chunks, strict=True)]


class Pullback(LinearMap):
    """v -> J^T v by reverse mode, through the graph of one run."""

    label = "reverse mode"

    def __init__(self, caller: Caller, run: reverse.Run, arguments: Arguments) -> None:
        super().__init__(caller)
        self._recording = reverse.record(run, arguments.leaves, arguments.chosen)
        self.evaluation = self._recording.evaluation

    def apply(self, direction: Tensors) -> Tensors:
        return self._recording.pull(direction)

    def apply_last(self, direction: Tensors) -> Tensors:
        """The image of one direction, after which the graph may be gone."""
        return self._recording.pull(direction, keep=False)


class Pushforward(LinearMap):
    """u -> J u by forward mode, with a run of the function for each direction or batch of them."""

    label = "forward mode"

    def __init__(self, caller: Caller, run: reverse.Run, arguments: Arguments) -> None:
        super().__init__(caller)
        self._run = run
        self._arguments = arguments
        self._linear: reverse.Linearization | None = None
        self._draws: Tensor | None = None
        self._pushed: forward.Pushed | None = None

    def independent(self) -> list[int]:
        """The outputs that carried no tangent when the function was last run."""
        if self._linear is not None:
            tangents = self._linear.reached()
        else:
            assert self._pushed is not None
            tangents = self._pushed.tangents
        return [index for index, tangent in enumerate(tangents) if tangent is None]

    def apply(self, direction: Tensors) -> Tensors:
        if self._linear is None:
            try:
                return self.push(direction).filled()
            except NotImplementedError as error:
                self._linear = self._without_forward_rule(error)
        return self._linear.push(direction)

    def push(self, direction: Tensors) -> forward.Pushed:
        """One run of the function along this direction."""
        arguments = self._arguments
        pushed = forward.push(self._run, arguments.leaves, arguments.chosen, direction)
        self.evaluation = pushed.evaluation
        self._pushed = pushed
        return pushed

    def _batched(self, stacks: Tensors, randomness: str) -> Tensors:
        if randomness == "same":
            self._replay_draws(randomness)
        if self._linear is None:
            try:
                return self._push_batch(stacks, randomness)
            except NotImplementedError as error:
                self._linear = self._without_forward_rule(error)
        return batched(self._linear.push, stacks, randomness)

    def _push_batch(self, stacks: Tensors, randomness: str) -> Tensors:
        """Push a batch; auxiliary tensors ride along, to leave the batching level with the images."""
        pushes: list[forward.Pushed] = []

        def push_with_aux(direction: Tensors) -> Tensors:
            pushed = self.push(direction)
            pushes.append(pushed)
            return pushed.filled() + [x for x in pushed.evaluation.aux if isinstance(x, Tensor)]

        images = batched(push_with_aux, stacks, randomness)
        evaluation = pushes[0].evaluation
        count = len(evaluation.outputs)
        shown = iter(images[count:])
        aux = [next(shown)[0] if isinstance(x, Tensor) else x for x in evaluation.aux]
        self.evaluation = Evaluation(images[:count], evaluation.spec, aux, evaluation.aux_spec)
        return images[:count]

    def _looped(self, stacks: Tensors, randomness: str) -> Tensors:
        def apply_with_same_draw(direction: Tensors) -> Tensors:
            self._replay_draws(randomness)
            images = self.apply(direction)
            if randomness == "error" and self._drew():
                raise self._random()
            return images

        return looped(apply_with_same_draw, stacks)

    def _replay_draws(self, randomness: str) -> None:
        """Start every run of the function from the same random state, if that is asked for."""
        if self._draws is None:
            self._draws = torch.get_rng_state()
        elif randomness == "same":
            torch.set_rng_state(self._draws)

    def _drew(self) -> bool:
        return self._draws is not None and not torch.equal(self._draws, torch.get_rng_state())

    def _without_forward_rule(self, error: NotImplementedError) -> reverse.Linearization:
        """The map through the graph of the pullback, where a forward-mode rule is what is missing."""
        operation = missing_forward_rule(error)
        if operation is None:
            raise error
        linear = _linearize(
            self._run,
            self._arguments,
            differentiable_attention() if "scaled_dot_product" in operation else nullcontext(),
        )
        if operation == _CUSTOM_FUNCTION:
            operation = ", ".join(linear.without_jvp()) or operation
        self.evaluation = linear.evaluation
        self.batching = self.batching.down("graph", f"no forward-mode rule for {operation}")
        warn(
            f"{self._caller}: torch has no forward-mode rule for {operation}; the pullback was "
            "differentiated instead, which gives the same result at a higher cost.",
            ForwardModeWarning,
        )
        return linear


class Linearized(LinearMap):
    """u -> J u through the graph of the pullback: the function is run once, here."""

    label = "linearized"

    def __init__(self, caller: Caller, run: reverse.Run, arguments: Arguments) -> None:
        super().__init__(caller)
        linear = _linearize(run, arguments, nullcontext())
        if linear.obstacle is not None:
            linear = _linearize(run, arguments, differentiable_attention())
        self.evaluation = linear.evaluation
        self._push: Apply = linear.push
        if linear.obstacle is not None:
            self._push = Pushforward(caller, run, arguments).apply

    def apply(self, direction: Tensors) -> Tensors:
        return self._push(direction)


def _linearize(
    run: reverse.Run, arguments: Arguments, setting: AbstractContextManager[None]
) -> reverse.Linearization:
    with setting:
        return reverse.linearize(run, arguments.leaves, arguments.chosen)


def missing_forward_rule(error: NotImplementedError) -> str | None:
    """The operation whose forward-mode rule torch misses, if that is what this error says."""
    text = str(error)
    if "implement the jvp function" in text:
        return _CUSTOM_FUNCTION
    found = re.search(r"forward AD with (\S+) that does not support it", text)
    return found.group(1) if found else None
