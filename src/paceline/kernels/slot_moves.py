"""Slot moves, in Triton: keys and values of accepted nodes move to where committed ones lie, in all layers with one launch for
each size of a slot.

A path that a draft forked away from lies scattered; behind a verdict its slots are brought together. By layer that would be four
launches each, which take the host longer than many a forward.
"""

# pyright: reportMissingImports=false, reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false
# ... for Triton is optional, and its stubs know neither the values of a kernel nor the options of a launch

from __future__ import annotations

from collections.abc import Callable, Sequence as Many

import torch
import triton
import triton.language as tl

_BLOCK = 1024
"""Words of a slot that one program moves."""


@triton.jit(do_not_specialize=["count"])
def _moved(addresses, places, count, words: tl.constexpr, block: tl.constexpr):
    """One store and part of its slots: they move one after another, for a slot may be left before another one comes to it."""
    store = tl.load(addresses + tl.program_id(0)).to(tl.pointer_type(tl.int32))
    word = tl.program_id(1) * block + tl.arange(0, block)
    for turn in range(count):
        source = tl.load(places + turn)
        destination = tl.load(places + count + turn)
        held = tl.load(store + source * words + word, mask=word < words)
        tl.store(store + destination * words + word, held, mask=word < words)


def slot_mover(stores: Many[torch.Tensor]) -> Callable[[Many[int], Many[int]], None]:
    """What copies slots within each store, and does not wait for the device. It holds where they lie, and does not keep them.

    stores: of any shape [pages, page_size, ...], contiguous, a multiple of four bytes to a slot. It is called with sources and
    destinations: places in pages that are joined end to end, in such an order that none is read behind the one that is written
    over it. Raises ValueError for slots of other sizes.
    """
    device = stores[0].device
    by_words: dict[int, list[int]] = {}
    for store in stores:
        words, beyond = divmod(store.stride(1) * store.element_size(), 4)
        if beyond:
            raise ValueError("slots are moved by words of four bytes")
        by_words.setdefault(words, []).append(store.data_ptr())
    groups = [(words, torch.tensor(addresses, device=device)) for words, addresses in by_words.items()]

    def move(sources: Many[int], destinations: Many[int]) -> None:
        places = torch.tensor([*sources, *destinations], pin_memory=device.type == "cuda").to(device, non_blocking=True)
        for words, addresses in groups:
            grid = (len(addresses), triton.cdiv(words, _BLOCK))
            _moved[grid](addresses, places, len(sources), words=words, block=_BLOCK, num_warps=4)

    return move
