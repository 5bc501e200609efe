"""Jobs and tensors on their way to another process and back, as bytes."""

from __future__ import annotations

import pickle
import traceback
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from covector._engine.graph import written_out
from covector._engine.messages import NOT_WRITABLE
from covector._tasks.parts import obstacle
from covector.errors import Caller, CovectorWarning, SendError, WorkerError


class Span(NamedTuple):
    """Directions from `start` up to `stop`."""

    start: int
    stop: int


class Job(Protocol):
    """A linear map that can be made anywhere: from the function, the point, and what was decided."""

    @property
    def caller(self) -> Caller:
        """Who asked, for errors."""

    def images(self, span: Span) -> list[Tensor]:
        """The images of some directions, stacked along the first axis."""

    def named(self) -> dict[str, Any]:
        """What has to be sent, by the names that the user knows it by."""


class Packed(NamedTuple):
    """A job as bytes."""

    data: bytes


def packed(job: Job) -> Packed:
    """The job as bytes; an error that names the part which cannot be sent."""
    dumps = _pickler()
    try:
        return Packed(dumps(job))
    except Exception as error:
        raise _cannot_send(job, dumps) from error


def _pickler() -> Callable[[Any], bytes]:
    """By cloudpickle if it is there (Dask brings it), which sends closures and lambdas; else by pickle."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps
    return cloudpickle.dumps


def _cannot_send(job: Job, dumps: Callable[[Any], bytes]) -> SendError:
    found = (obstacle(name, value, dumps) for name, value in job.named().items())
    first = next((one for one in found if one is not None), None)
    if first is None:
        return SendError(f"{job.caller}: the function and its arguments cannot be sent together.")
    if isinstance(first.value, FunctionType) and dumps is pickle.dumps:
        remedy = (
            "Python's pickle sends functions by their name alone: define it at the top level of a module, or "
            "install cloudpickle, which sends lambdas and closures too."
        )
    else:
        remedy = "Make it inside the function, or leave it out of what the function captures."
    kind = f"{type(first.value).__module__}.{type(first.value).__qualname__}".removeprefix("builtins.")
    return SendError(
        f"{job.caller}: this cannot be sent to another process: {first.path} ({kind}): {first.why}. {remedy}"
    )


class Wire(NamedTuple):
    """A tensor as an array of bytes, which every serialiser knows; NumPy lacks some of torch's dtypes."""

    data: Any
    dtype: torch.dtype
    shape: tuple[int, ...]
    device: str

    @classmethod
    def of(cls, tensor: Tensor) -> Wire:
        """The numbers of a tensor."""
        plain = written_out(tensor.detach()).resolve_conj().resolve_neg().cpu().contiguous()
        data = plain.reshape(-1).view(torch.uint8).numpy()
        return cls(data, plain.dtype, tuple(plain.shape), str(tensor.device))

    def tensor(self) -> Tensor:
        """The tensor again; its memory may be that of the message, which is not written to."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=NOT_WRITABLE)
            data = torch.from_numpy(np.asarray(self.data))
        return data.view(self.dtype).reshape(self.shape).to(self.device)


class Answer(NamedTuple):
    """What comes back: the images of a span of directions, and what was warned of on the way."""

    images: list[Wire]
    warnings: list[tuple[type[CovectorWarning], str]]


def _travels(error: Exception) -> bool:
    """Whether an exception can be sent back as it is."""
    try:
        return isinstance(pickle.loads(pickle.dumps(error)), type(error))
    except Exception:
        return False


def _told(caller: Caller, error: Exception) -> WorkerError:
    """An exception that cannot be sent back, in words: its class was sent here, or takes other arguments."""
    told = WorkerError(f"{caller}: on a worker the function raised {type(error).__name__}: {error}")
    told.add_note("".join(traceback.format_exception(error)))
    return told


def answer(job: Packed, span: Span) -> Answer:
    """In another process: unpack the job and compute the images of some directions."""
    try:
        made: Job = pickle.loads(job.data)
    except ImportError as error:
        raise SendError(
            f"a worker cannot load the function: {error}. What the function imports has to be installed on "
            "every worker, or lie on its path."
        ) from error
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        images: list[Tensor] | WorkerError
        try:
            images = made.images(span)
        except Exception as error:
            if _travels(error):
                raise
            images = _told(made.caller, error)
    if isinstance(images, WorkerError):
        raise images  # outside of the handler: as its context, the other one would have to be sent too
    told = [(w.category, str(w.message)) for w in heard if issubclass(w.category, CovectorWarning)]
    return Answer([Wire.of(image) for image in images], told)
