"""Slot moves, in Triton: keys and values of accepted nodes are moved to follow the committed ones, in all layers with one launch
per slot size.

The accepted path of a forking draft has scattered slots, which are compacted after the verdict. Layer by layer that would take
four launches each, which cost the host more time than many a forward pass.
"""

# pyright: reportMissingImports=false, reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false
# ... for Triton is optional, and its stubs know neither the values of a kernel nor the options of a launch

from __future__ import annotations

from collections.abc import Callable, Sequence as Many

import torch
import triton
import triton.language as tl

_BLOCK = 1024
"""Words (4 bytes) of a slot that one program moves."""


@triton.jit(do_not_specialize=["count"])
def _moved(addresses, places, count, words: tl.constexpr, block: tl.constexpr):
    """One store, and a block of words of its slots. Slots are moved in order, as a later move may overwrite an earlier source."""
    store = tl.load(addresses + tl.program_id(0)).to(tl.pointer_type(tl.int32))
    word = tl.program_id(1) * block + tl.arange(0, block)
    for turn in range(count):
        source = tl.load(places + turn)
        destination = tl.load(places + count + turn)
        held = tl.load(store + source * words + word, mask=word < words)
        tl.store(store + destination * words + word, held, mask=word < words)


def slot_mover(stores: Many[torch.Tensor]) -> Callable[[Many[int], Many[int]], None]:
    """A function that copies slots within each store without waiting for the device. It keeps the stores' addresses, but does not
    keep them alive.

    stores: of any shape [pages, page_size, ...], contiguous, with a multiple of four bytes per slot. The function takes sources
    and destinations: slot indices over all pages in order, ordered so that no source is read after it was overwritten. Raises
    ValueError for other slot sizes.
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
