# SPDX-License-Identifier: MIT
"""Derives a weight, looks it up, swaps the model, reads what the teardown said. python3 derive.py"""
import oc


def derive(model, weight, size):
    with model.build(oc.BF16, weight) as build:
        if build.found:
            return build.values[0]
        block = build.alloc(2 * size)
        # ... launch the kernel that fills it, and build.on_stream(stream) ...
        return build.commit(block)


def refused(name, call, *arguments):
    try:
        call(*arguments)
    except oc.Error as e:
        print(e)
        assert e.name == name, e
    else:
        raise AssertionError(f"no {name}")


with oc.Backend("host") as device:
    with oc.Model(device) as old:
        weight = old.alloc(4096)
        value = derive(old, weight, 4096)
        assert derive(old, weight, 4096) == value
        with old.use():
            assert old.find(oc.BF16, weight) == value
            refused("OC_E_GUARDED", old.destroy)
        with old.hold("a request"):
            assert old.find(oc.BF16, weight + 4096) is None
        refused("OC_E_KIND", old.find, oc.ROWWISE_FP8, weight)
        refused("OC_E_NOT_FOUND", old.kernel, "ops", "none")
        with old.build(oc.CUTLASS_NVFP4_T, weight) as left:   # ends without a commit
            left.alloc(4096)
        assert old.find(oc.CUTLASS_NVFP4_T, weight) is None

    # The next model may get the same addresses: nothing of the old one answers for them.
    with oc.Model(device) as new:
        assert new.generation > old.generation
        assert new.find(oc.BF16, weight) is None

print(old.report)
assert "derive.py" in old.report, "the block that nobody owned is reported with its call site"
print("liboc", oc.version())
