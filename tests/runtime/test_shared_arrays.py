"""Arguments and results through shared memory arrive as they were, and leave no file behind."""

import gc
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from fedactors.messages.codec import freeze
from fedactors.runtime import compute
from fedactors.runtime.compute import ProcessPool


def grown(values, number):
    return values + number, number


def fails(values):
    raise ValueError(f"{len(values)} values")


def large(value=1.0):
    array = np.full((200, 100), value)
    array.setflags(write=False)
    return array


def test_a_placed_array_is_mapped_as_it_was_and_cannot_be_written(tmp_path):
    array = np.arange(30_000, dtype=np.float32).reshape(100, 300)
    found = compute.mapped(compute.share_array(array, str(tmp_path)))
    np.testing.assert_array_equal(found, array)
    assert not found.flags.writeable
    assert freeze(found)[0] is found


@pytest.mark.slow
def test_an_array_sent_again_is_written_once_and_goes_with_its_owner(tmp_path):
    arguments = compute.Arguments(str(tmp_path))
    array, writable, small = large(), np.zeros((200, 100)), np.zeros(3)
    first, second = arguments.share((array, writable, small)), arguments.share((array,))
    assert first[0] == second[0]
    assert first[1] is writable
    assert first[2] is small
    assert len(os.listdir(tmp_path)) == 1
    del array
    gc.collect()
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_pool_gives_what_the_function_gives_here():
    pool = ProcessPool(1)
    folder = pool._folder
    array = large()
    futures = [pool.submit(grown, (array, number)) for number in range(5)]
    for number, future in enumerate(futures):
        values, same = future.result()
        np.testing.assert_array_equal(values, array + number)
        assert same == number
    with pytest.raises(ValueError, match="200 values"):
        pool.submit(fails, (array,)).result()
    assert len(os.listdir(folder)) == 1
    pool.close()
    assert not os.path.exists(folder)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="not glibc")
@pytest.mark.parametrize("tuned", [None, "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_memory_that_is_freed_is_used_again_unless_the_environment_tunes_it(tuned):
    """A page that the system gives anew is a fault; 64 KiB to 1 MiB are what messages and payloads have."""
    said = """
        import resource
        from fedactors.runtime.compute import keep_freed_memory

        def faults():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(50):
                held = [bytes([1]) * size for size in (1 << 16, 693_000, 1 << 20) for _ in range(4)]
                del held
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        faults(), keep_freed_memory(), faults()
        print(faults())
    """
    given = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    env = given | ({} if tuned is None else {tuned: "glibc.malloc.perturb=0" if "GLIBC" in tuned else "131072"})
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(said)], env=env, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 500 if tuned is None else int(done.stdout) > 20_000, done.stdout
