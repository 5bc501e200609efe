"""Linear maps: the derivative of a function at a point, to be applied singly, in batches, or whole.

A batch goes down a ladder: first one vmap over all directions; where an operation has no forward-mode
rule, a batch through the recorded graph of the pullback; where batching itself is impossible, a loop.
The map remembers the rung it stands on and why it left the ones above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from covector._chart import Chart, real_dtype
from covector._engine import forward, graph, levels, messages, reverse, scopes
from covector._engine.batch import Apply, batched, looped
from covector._engine.compiled import is_exporting, tracing, uncompiled
from covector._engine.constants import without_zeros
from covector._engine.right import NoRightRule
from covector._engine.twice import another_way, differentiable_attention
from covector._engine.watch import always_recording
from covector._images import Directions, Gathered, Pace, Steady, Tensors, joined, released
from covector._tree import Arguments, Evaluation
from covector.errors import (
    BatchingWarning,
    Caller,
    ForwardModeWarning,
    RandomnessError,
    UnsupportedError,
    first_sentence,
    warn,
)


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
    batching = Batching()
    _refuses_draws = True
    _batch_failures: tuple[type[Exception], ...] = (RuntimeError, TypeError)

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def apply(self, direction: Tensors) -> Tensors:
        """The image of one direction."""
        raise NotImplementedError

    def apply_batch(
        self, stacks: Tensors, *, chunk_size: int | None = None, randomness: str = "error"
    ) -> Tensors:
        """The images of many directions, stacked along the first axis as the directions are."""
        count = stacks[0].shape[0]
        if chunk_size is None or chunk_size >= count:
            return self._apply_chunk(stacks, randomness)
        size = max(1, chunk_size)
        spans = [slice(start, start + size) for start in range(0, count, size)]
        return joined([self._apply_chunk([stack[span] for stack in stacks], randomness) for span in spans])

    def matrix(
        self,
        over: Directions,
        *,
        chunk_size: int | None,
        randomness: str,
        like: Sequence[Tensor] | None = None,
        pace: Pace | None = None,
    ) -> Tensors:
        """The images of the whole basis of `over`, which is made a chunk at a time."""
        if pace is None:
            if chunk_size is None or chunk_size >= over.size:
                return self._apply_chunk(over.basis(0, over.size, like), randomness)
            pace = Steady(chunk_size)
        gathered, start = Gathered(over.size), 0
        while start < over.size or not gathered.any:
            stop = start + pace.next(over.size - start)
            with pace.step(stop - start):
                images = self._apply_chunk(over.basis(start, stop, like), randomness)
            gathered.add(start, images)
            start = stop
        return gathered.whole()

    def whole(self) -> Tensor | None:
        """The matrix between one tensor and another, if there is a short way to it."""
        return None

    def _batched(self, stacks: Tensors, randomness: str) -> Tensors:
        images = batched(self.apply, stacks, randomness)
        # With a dual level open everything is recorded, for the sake of tangents that there may be.
        return released(images) if levels.dual_level_open() else images

    def _looped(self, stacks: Tensors, randomness: str) -> Tensors:
        return looped(self.apply, stacks)

    def _apply_chunk(self, stacks: Tensors, randomness: str) -> Tensors:
        count = stacks[0].shape[0]
        if count == 0:
            one = [torch.zeros((1, *s.shape[1:]), dtype=s.dtype, device=s.device) for s in stacks]
            return [image[:0] for image in self._looped(one, randomness)]
        if count == 1 or self.batching.rung == "loop":
            return self._looped(stacks, randomness)
        try:
            return self._batched(stacks, randomness)
        except self._batch_failures as error:
            if messages.draws_in_batch(error) and self._refuses_draws:
                raise self._random() from error
            failure = error
        try:
            images = self._looped(stacks, randomness)
        except Exception as error:
            raise error from failure
        self._lowered(first_sentence(failure))
        return images

    def _lowered(self, reason: str) -> None:
        """Stay on the loop from now on, and say so."""
        self.batching = self.batching.down("loop", reason)
        warn(
            f"{self._caller}: directions are applied one by one, because the batch failed: {reason}. "
            "Pass chunk_size=1 to choose the loop yourself.",
            BatchingWarning,
        )

    def _random(self) -> RandomnessError:
        return RandomnessError(
            f"{self._caller}: the function draws random numbers, and each direction would see its own. "
            "Pass randomness='same' (every direction sees the same draw: the Jacobian of that draw) "
            "or randomness='different'."
        )


class Pullback(LinearMap):
    """v -> J^T v by reverse mode, through the graph of one run."""

    label = "reverse mode"

    def __init__(self, caller: Caller, recording: reverse.Recording, arguments: Arguments) -> None:
        self._caller, self._recording, self._arguments = caller, recording, arguments
        self.evaluation = recording.evaluation

    @classmethod
    def of(
        cls,
        caller: Caller,
        run: reverse.Run,
        arguments: Arguments,
        at_top: type[scopes.PlainScope] = scopes.PlainScope,
    ) -> Pullback:
        """The pullback of a function, which is run here."""
        return Pullback(caller, reverse.record(run, arguments.leaves, arguments.chosen, at_top), arguments)

    def apply(self, direction: Tensors, *, keep: bool = True) -> Tensors:
        return self._recording.pull(direction, keep=keep)

    def whole(self) -> Tensor | None:
        return self._recording.whole()

    def part(self, output: int, variable: int) -> Pullback:
        """The pullback of one output to one variable, through the same graph."""
        part = Pullback(self._caller, self._recording.part(output, variable), self._arguments)
        part.batching = self.batching
        return part


class NoForwardRule(Exception):
    """A signal to whoever forbade going around: this operation has no forward-mode rule."""


class Pushforward(LinearMap):
    """u -> J u by forward mode, with a run of the function for each direction or batch of them.

    Where forward mode has no rule for an operation, or loses the tangent at one, the map goes through
    the graph of the pullback instead, and where that has no derivative, through the rows of J.
    """

    label = "forward mode"

    def __init__(
        self, caller: Caller, run: reverse.Run, arguments: Arguments, *, go_around: bool = True
    ) -> None:
        super().__init__(caller)
        self._may_go_around = go_around
        self._run = always_recording(run)
        alone = forward.nobody_records(arguments.leaves)
        self._moving_run = without_zeros(caller.function, run) if alone else run
        self._arguments = arguments
        self._other: Apply | None = None
        self._trusted = False
        self._draws: Tensor | None = None
        self._independent: list[int] = []
        if tracing() or is_exporting():
            # The zeros that forward mode takes for the tangents of constants have no description while a
            # compiler traces (all norms with weights fail), and each run of the function would draw other
            # random numbers. The compiler drops what is computed for the pullback alone.
            self._go_through(Linearized(caller, self._run, arguments))

    def _go_through(self, linear: Linearized) -> None:
        """Apply the map through the graph of the pullback from now on."""
        self._other, self.evaluation = linear.apply, linear.evaluation
        self._independent = linear.independent()

    def independent(self) -> list[int]:
        """The outputs that carried no tangent when the function was last run."""
        return self._independent

    def apply(self, direction: Tensors) -> Tensors:
        if self._other is None:
            try:
                pushed = self._push(direction)
                if not self._tangent_lost(pushed):
                    return self._settled(pushed)
            except NotImplementedError as error:
                self._without_rule(error)
        assert self._other is not None
        return self._other(direction)

    def _push(self, direction: Tensors) -> forward.Pushed:
        arguments = self._arguments
        pushed = forward.push(self._moving_run, arguments.leaves, arguments.chosen, direction)
        self.evaluation = pushed.evaluation
        self._independent = [i for i, tangent in enumerate(pushed.tangents) if tangent is None]
        return pushed

    def _settled(self, pushed: forward.Pushed) -> Tensors:
        """What was pushed forward, batched where a primal is."""
        if not levels.active():
            return released(pushed.filled())
        primals = self._arguments.primals()
        return [levels.in_batches_of(image, primals) for image in pushed.filled()]

    def _batched(self, stacks: Tensors, randomness: str) -> Tensors:
        if self._other is None:
            if randomness == "same":
                self._replay_draws(randomness)
            try:
                images, pushed = self._push_batch(stacks, randomness)
            except NotImplementedError as error:
                self._without_rule(error)
            else:
                if not self._tangent_lost(pushed):
                    return released(images)
        assert self._other is not None
        return batched(self._other, stacks, randomness)

    def _push_batch(self, stacks: Tensors, randomness: str) -> tuple[Tensors, forward.Pushed]:
        """Push a batch; auxiliary tensors ride along, to leave the batching level with the images."""
        pushes: list[forward.Pushed] = []

        def push_with_aux(direction: Tensors) -> Tensors:
            pushed = self._push(direction)
            pushes.append(pushed)
            return self._settled(pushed) + [x for x in pushed.evaluation.aux if isinstance(x, Tensor)]

        images = batched(push_with_aux, stacks, randomness)
        evaluation = pushes[0].evaluation
        count = len(evaluation.outputs)
        shown = iter(images[count:])
        aux = [next(shown)[0] if isinstance(x, Tensor) else x for x in evaluation.aux]
        self.evaluation = Evaluation(images[:count], evaluation.spec, aux, evaluation.aux_spec)
        return images[:count], pushes[0]

    def _looped(self, stacks: Tensors, randomness: str) -> Tensors:
        if self._other is not None:
            return looped(self._other, stacks)

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

    def _tangent_lost(self, pushed: forward.Pushed) -> bool:
        """Whether an output without a tangent depends on the inputs all the same, by reverse mode.

        An operation that torch differentiates by reverse mode only may drop the tangent silently.
        """
        outputs = pushed.evaluation.outputs
        suspects = [i for i in self._independent if outputs[i].is_floating_point() or outputs[i].is_complex()]
        if self._trusted or not suspects:
            return False
        self._trusted = True
        recording = reverse.record(self._run, self._arguments.leaves, self._arguments.chosen)
        reached = [i for i in suspects if recording.outputs[i].requires_grad]
        if not reached or (not levels.active() and recording.is_flat(reached)):
            return False
        self._go_around("an operation that drops the tangent", nullcontext())
        return True

    def _without_rule(self, error: NotImplementedError) -> None:
        if isinstance(error, NoRightRule):
            self._go_around(error.operation, uncompiled())
        elif (operation := messages.missing_forward_rule(error)) is not None:
            self._go_around(operation, another_way(error) or nullcontext())
        else:
            raise error

    def _go_around(self, operation: str, setting: AbstractContextManager[None]) -> None:
        """Apply the map another way from now on, and say why."""
        if not self._may_go_around:
            raise NoForwardRule(operation)
        try:
            with setting:
                linear = Linearized(self._caller, self._run, self._arguments)
        except NoRightRule:  # of a push around this one
            raise
        except RuntimeError as error:
            raise UnsupportedError(
                f"{self._caller}: torch has no forward-mode rule for {operation}, and the pullback, which "
                f"could replace it, failed: {first_sentence(error)}."
            ) from error
        self._go_through(linear)
        if operation == messages.CUSTOM_FUNCTION:
            operation = ", ".join(linear.without_jvp()) or operation
        self.batching = self.batching.down("graph", f"no forward-mode rule for {operation}")
        warn(
            f"{self._caller}: torch has no forward-mode rule for {operation}; the pullback was "
            "differentiated instead, which gives the same result at a higher cost.",
            ForwardModeWarning,
        )


class Linearized(LinearMap):
    """u -> J u through the graph of the pullback; where that has no derivative, by the rows of J.

    The function is run once, here; for the rows it is run again.
    """

    label = "linearized"

    def __init__(
        self,
        caller: Caller,
        run: reverse.Run,
        arguments: Arguments,
        at_top: type[scopes.PlainScope] = scopes.PlainScope,
    ) -> None:
        super().__init__(caller)
        self._pullback: Callable[[], Pullback] = lambda: Pullback.of(caller, run, arguments, at_top)
        self._linear: reverse.Linearization | None = None
        self._rows: Apply | None = None
        try:
            linear = reverse.linearize(run, arguments.leaves, arguments.chosen, at_top)
            if linear.obstacle is not None:
                with differentiable_attention():
                    linear = reverse.linearize(run, arguments.leaves, arguments.chosen, at_top)
        except RuntimeError as error:  # a backward that cannot be recorded, or the function itself
            if tracing():  # what is refused here must not be had by another way either
                raise
            self.evaluation = self._by_rows_after(error).evaluation
        else:
            self._linear, self.evaluation = linear, linear.evaluation

    def _by_rows_after(self, error: RuntimeError) -> Pullback:
        """Go by the rows of J from now on; the error, if the pullback is not to be had either."""
        try:
            pullback = self._pullback()
        except RuntimeError:
            raise error from None
        self._rows = _by_rows(pullback)
        return pullback

    def apply(self, direction: Tensors) -> Tensors:
        return self.filled(self.reach(direction))

    def reach(self, direction: Tensors, *, keep: bool = True) -> Sequence[Tensor | None]:
        """J u, with None for an output that no variable leads to."""
        if self._rows is None:
            assert self._linear is not None
            if self._linear.obstacle is None:
                try:
                    return self._linear.reach(direction, keep=keep)
                except RuntimeError:  # a backward that turns out to have no derivative
                    pass
            self._rows = _by_rows(self._pullback())
        return self._rows(direction)

    def filled(self, images: Sequence[Tensor | None]) -> Tensors:
        """What was pushed forward, with zeros where there is no path."""
        return list(images) if self._linear is None else self._linear.filled(images)  # type: ignore[arg-type]

    def pulled(self) -> Sequence[Tensor | None]:
        """J^T applied to ones, for each variable; None where no output leads to it."""
        if self._linear is not None:
            return self._linear.pulled
        pullback = self._pullback()
        return pullback._recording.reach([torch.ones_like(output) for output in pullback.evaluation.outputs])

    def independent(self) -> list[int]:
        """The outputs that no variable leads to, as far as that is known."""
        reached = [] if self._linear is None else self._linear.cotangents
        return [i for i, cotangent in enumerate(reached) if cotangent is None]

    def without_jvp(self) -> list[str]:
        """Names of the custom Functions on the way that define no forward-mode rule."""
        return [] if self._linear is None else graph.functions_without("jvp", self._linear.outputs)


def _by_rows(pullback: Pullback) -> Apply:
    """J u as a product with the rows of J, which are computed here."""
    outputs = Chart.of(pullback.evaluation.outputs)
    # In a loop: operations that come here are the ones whose batching rules are least to be trusted.
    rows = pullback.matrix(outputs, chunk_size=1, randomness="error")

    def push(direction: Tensors) -> Tensors:
        parts = [
            Chart.of([tangent]).to_coords([tangent])
            @ Chart.of([tangent]).stack_to_coords([stack]).T.to(real_dtype(tangent.dtype))
            for stack, tangent in zip(rows, direction, strict=True)
        ]
        return outputs.from_coords(sum(parts[1:], start=parts[0]))

    return push
